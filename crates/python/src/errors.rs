//! What went wrong, as exceptions of `python/tapdeck/_errors.py`.

use pyo3::{PyErr, import_exception};
use tapdeck_store::query::Error;

use crate::answer::Failure;

import_exception!(tapdeck._errors, AlreadyReadError);
import_exception!(tapdeck._errors, FilterError);
import_exception!(tapdeck._errors, IncompleteWarning);
import_exception!(tapdeck._errors, QuestionError);
import_exception!(tapdeck._errors, StoreError);
import_exception!(tapdeck._errors, StoreNotFoundError);
import_exception!(tapdeck._errors, TapdeckError);
import_exception!(tapdeck._errors, TimeError);
import_exception!(tapdeck._errors, UnsupportedError);

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Self::from(&failure)
    }
}

impl From<&Failure> for PyErr {
    fn from(failure: &Failure) -> Self {
        let text = failure.to_string();
        match failure {
            Failure::Store(Error::NotFound(_)) => StoreNotFoundError::new_err(text),
            Failure::Store(_) | Failure::Segment { .. } => StoreError::new_err(text),
            Failure::Place(_) => QuestionError::new_err(text),
            Failure::NoReader(_) => UnsupportedError::new_err(text),
            Failure::Filter(e) if e.is_usage() => FilterError::new_err(text),
            Failure::Filter(_)
            | Failure::Columns(_)
            | Failure::Broken
            | Failure::Left
            | Failure::Forked => TapdeckError::new_err(text),
        }
    }
}
