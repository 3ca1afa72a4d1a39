//! The page at `/`, embedded in the program: it fetches nothing from anywhere else.

use std::sync::LazyLock;

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use gatescope_routing::Check;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

/// A file of the page.
struct Asset {
    path: &'static str,
    media: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $media:ident)*) => {
        const ASSETS: &[Asset] = &[$(Asset {
            path: $path,
            media: $media,
            bytes: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/web/", $path)),
        }),*];
    };
}

assets! {
    "index.html" HTML
    "app.css" CSS
    "icon.svg" SVG
    "js/alerts.js" JS
    "js/ask.js" JS
    "js/dom.js" JS
    "js/experts.js" JS
    "js/fleet.js" JS
    "js/heatmap.js" JS
    "js/load.js" JS
    "js/main.js" JS
    "js/query.js" JS
    "js/request.js" JS
    "js/requests.js" JS
    "js/theme.js" JS
    "js/words.js" JS
}

/// The checks, as the page names them: `[code]: [name, about]`.
static CHECKS: LazyLock<String> = LazyLock::new(|| {
    let checks: serde_json::Map<String, serde_json::Value> =
        Check::ALL.iter().map(|check| (check.code().to_owned(), json!([check.name(), check.about()]))).collect();
    format!("export const CHECKS = {};\n", serde_json::Value::Object(checks))
});

/// What a browser may do with the page: talk to where it came from, and nothing else.
const GUARDS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action \
         'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // Asked each time, answered with 304 where nothing has changed: a new version is seen at once.
    (header::CACHE_CONTROL, "no-cache"),
];

/// `/` and the files behind it.
pub(super) fn router() -> Router {
    Router::new()
        .route("/", get(|headers: HeaderMap| async move { file("index.html", &headers) }))
        .route("/favicon.ico", get(|headers: HeaderMap| async move { file("icon.svg", &headers) }))
        .route("/{name}", get(|Path(name): Path<String>, headers: HeaderMap| async move { file(&name, &headers) }))
        .route(
            "/js/{name}",
            get(|Path(name): Path<String>, headers: HeaderMap| async move { file(&format!("js/{name}"), &headers) }),
        )
}

fn file(path: &str, asked: &HeaderMap) -> Response {
    let found = match path {
        "js/checks.js" => Some((JS, CHECKS.as_bytes())),
        path => ASSETS.iter().find(|asset| asset.path == path).map(|asset| (asset.media, asset.bytes)),
    };
    let Some((media, bytes)) = found else {
        return (StatusCode::NOT_FOUND, "there is no such page; the page is at /\n").into_response();
    };
    let tag = format!("\"{:016x}\"", xxh3_64(bytes));
    let known = asked.get(header::IF_NONE_MATCH).is_some_and(|tags| tags.as_bytes() == tag.as_bytes());
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { bytes.into_response() };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in GUARDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the page may weigh.
    const MOST_BYTES: usize = 500 << 10;

    #[test]
    fn the_page_is_small_and_whole() {
        let sum: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(sum < MOST_BYTES, "{sum} bytes");

        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/web");
        let names = |folder: &std::path::Path, before: &str| -> Vec<String> {
            let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
            entries
                .filter(|entry| entry.file_type().unwrap().is_file())
                .map(|entry| format!("{before}{}", entry.file_name().to_str().unwrap()))
                .collect()
        };
        let found: BTreeSet<String> = names(&folder, "").into_iter().chain(names(&folder.join("js"), "js/")).collect();
        assert_eq!(found, ASSETS.iter().map(|asset| asset.path.to_owned()).collect());
    }

    #[test]
    fn the_page_names_no_other_host() {
        for asset in ASSETS.iter().filter(|asset| asset.path.ends_with(".html") || asset.path.ends_with(".css")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            assert!(!text.contains("://"), "{} names another host", asset.path);
        }
    }

    #[test]
    fn what_is_known_is_not_sent_again() {
        let first = file("app.css", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        assert!(first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(file("app.css", &known).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(file("../Cargo.toml", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
