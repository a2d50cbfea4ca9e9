//! The console: a page that a browser asks the gateway by.
//!
//! Its files are a part of the program. Whoever may connect may have them: nothing of a recording
//! is in them, and what the page asks for is answered to those alone who may have it. The browser
//! is told to run, load and ask nothing but what comes from here ([`POLICY`]), so that not even a
//! packet that got into the page as more than text could act or tell.

use axum::Router;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// What the page may do. Text never becomes markup: browsers that know Trusted Types refuse that,
/// too.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
#[derive(Clone, Copy)]
struct File {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($name:literal, $kind:literal) => {
        File {
            path: concat!("/console/", $name),
            content_type: concat!($kind, "; charset=utf-8"),
            text: include_str!(concat!("../console/", $name)),
        }
    };
}

const PAGE: File = File { path: "/console/", ..file!("index.html", "text/html") };

const FILES: [File; 12] = [
    PAGE,
    file!("console.css", "text/css"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", "text/javascript"),
    file!("ask.js", "text/javascript"),
    file!("chart.js", "text/javascript"),
    file!("copy.js", "text/javascript"),
    file!("filter.js", "text/javascript"),
    file!("hosts.js", "text/javascript"),
    file!("packets.js", "text/javascript"),
    file!("page.js", "text/javascript"),
    file!("pins.js", "text/javascript"),
];

/// Returns the paths of the page's files. `/` leads to it.
pub fn router() -> Router {
    let mut router = Router::new().route("/", get(there)).route("/console", get(there));
    for file in FILES {
        router = router.route(file.path, get(give).with_state(file));
    }
    router
}

async fn there() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, PAGE.path)]).into_response()
}

async fn give(State(file): State<File>) -> Response {
    let head = [
        (CONTENT_TYPE, file.content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (head, file.text).into_response()
}

/// Says that an answer is what it says it is: a browser must not take packets for a page.
pub async fn no_sniffing(mut response: Response) -> Response {
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::{FILES, PAGE};

    #[test]
    fn the_page_brings_no_script_and_no_style_within_it() {
        for tag in PAGE.text.split('<').filter_map(|rest| rest.split('>').next()) {
            let is_script = tag.starts_with("script");
            assert!(!is_script || tag.contains("src="), "{tag}");
            assert!(!tag.starts_with("style") && !tag.contains(" style="), "{tag}");
            assert!(!tag.contains(" on"), "{tag}");
        }
    }

    #[test]
    fn nothing_is_asked_elsewhere_and_no_text_becomes_markup() {
        for file in FILES {
            let others = file.text.replace("http://www.w3.org/", "");
            assert!(!others.contains("http://") && !others.contains("https://"), "{}", file.path);
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!file.text.contains(word), "{}: {word}", file.path);
            }
        }
    }
}
