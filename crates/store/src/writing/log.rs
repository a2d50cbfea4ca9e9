//! Where do the threads that write a store put what the user must know? To whoever started them:
//! nothing here prints.

use std::sync::Arc;

/// Takes one line for the user.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
