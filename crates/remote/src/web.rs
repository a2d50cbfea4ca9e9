//! A directory on a web server: ranges (RFC 9110, section 14), and a listing in JSON as nginx
//! writes it (`autoindex on; autoindex_format json;`): an array of objects with `name` and
//! `type`, where files are those of type `file`.

use std::io::ErrorKind;
use std::ops::Range;

use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, RANGE};
use http::{HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Request, Url};
use serde::Deserialize;

use crate::exchange::{Answer, Asked};
use crate::server::{Failed, MOST_OBJECTS, Part};

/// Bytes of a listing.
const LISTING: usize = 64 << 20;
/// What stands in a path as it is (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Debug)]
pub struct Site {
    /// The directory's address, which ends with a slash.
    base: Url,
    asked: Asked,
}

/// An entry of a listing.
#[derive(Deserialize)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Site {
    pub fn new(mut base: Url, asked: Asked) -> Self {
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Self { base, asked }
    }

    pub async fn list(&self) -> Result<Vec<String>, Failed> {
        let mut request = Request::new(Method::GET, self.base.clone());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        let answer = self.asked.exchange(request, LISTING).await?;
        if answer.status != StatusCode::OK {
            return Err(refused(&answer));
        }
        let entries: Vec<Entry> = serde_json::from_slice(&answer.body).map_err(|e| {
            Failed::lie(format!(
                "its listing is not what nginx writes with `autoindex_format json` ({e})"
            ))
        })?;
        let files =
            entries.into_iter().filter(|entry| entry.kind == "file" && is_name(&entry.name));
        let files: Vec<String> = files.map(|entry| entry.name).collect();
        if files.len() > MOST_OBJECTS {
            return Err(Failed::lie("its listing has too many files"));
        }
        Ok(files)
    }

    pub async fn get(&self, name: &str, range: Range<u64>) -> Result<Part, Failed> {
        let mut address = self.base.clone();
        let path = format!("{}{}", address.path(), utf8_percent_encode(name, ESCAPED));
        address.set_path(&path);
        let mut request = Request::new(Method::GET, address);
        let asked = format!("bytes={}-{}", range.start, range.end - 1);
        let asked = HeaderValue::from_str(&asked).map_err(|e| Failed::lie(e.to_string()))?;
        request.headers_mut().insert(RANGE, asked);
        let most = (range.end - range.start) as usize;
        let answer = self.asked.exchange(request, most).await?;
        let tag = header(&answer.headers, ETAG.as_str()).map(str::to_owned);
        match answer.status {
            StatusCode::PARTIAL_CONTENT => {
                if answer.headers.contains_key(CONTENT_ENCODING) {
                    return Err(Failed::lie("it sends something else in place of the bytes"));
                }
                let told = header(&answer.headers, CONTENT_RANGE.as_str()).and_then(told);
                let Some((part, len)) = told else {
                    return Err(Failed::lie("it does not say which range it sends"));
                };
                if part != (range.start..range.end.min(len)) {
                    return Err(Failed::lie("it sends another range than was asked for"));
                }
                Ok(Part { bytes: answer.body, len, tag })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let len = header(&answer.headers, CONTENT_RANGE.as_str());
                let len = len.and_then(|told| told.strip_prefix("bytes */")?.parse().ok());
                match len {
                    Some(len) if range.start >= len => {
                        Ok(Part { bytes: bytes::Bytes::new(), len, tag })
                    }
                    _ => Err(Failed::lie("it refuses a range without a reason")),
                }
            }
            StatusCode::OK => Err(Failed::lie("it ignores ranges, and would send the whole file")),
            _ => Err(refused(&answer)),
        }
    }
}

/// Returns whether a text is the name of something in a directory.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the range and the length that a `Content-Range` tells.
fn told(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some((first..last.checked_add(1)?, len.parse().ok()?))
}

fn refused(answer: &Answer) -> Failed {
    let status = answer.status;
    let kind = match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => ErrorKind::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    let may_pass = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    Failed { kind, why: format!("it refuses ({status})"), may_pass }
}

#[cfg(test)]
mod tests {
    use super::{is_name, told};

    #[test]
    fn content_ranges_are_read_to_the_letter() {
        assert_eq!(told("bytes 0-9/10"), Some((0..10, 10)));
        assert_eq!(told("bytes 7-7/1000"), Some((7..8, 1000)));
        let max = u64::MAX;
        let huge = format!("bytes 0-{max}/{max}");
        for wrong in ["bytes 0-9", "bytes 0-9/*", "0-9/10", "bytes -9/10", "bytes */10", &huge] {
            assert_eq!(told(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_lead_to_nothing_above_or_below() {
        assert!(is_name("tapdeck-00000001-20260102T030405Z.pcapng"));
        for wrong in ["", ".", "..", "a/b", "/etc/passwd", "../x"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
