//! The description of the calls: `/openapi.json` for programs, `/docs` for people. A problem's `type` leads to its
//! place on that page.

use std::fmt::Write;

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};

use super::problem::Kind;

pub const DOCUMENT: &str = include_str!("openapi.json");
const PAGE: &str = include_str!("docs.html");
const PROBLEMS: &str = "<!-- problems -->";

pub fn routes(config: &mut web::ServiceConfig) {
    config.service(web::resource("/openapi.json").get(document)).service(web::resource("/docs").get(page));
}

async fn document() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::json()).body(DOCUMENT)
}

async fn page() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::html()).body(PAGE.replace(PROBLEMS, &problems()))
}

fn problems() -> String {
    Kind::ALL.iter().fold(String::new(), |mut list, kind| {
        let (status, name, title) = kind.told();
        // Writing to memory cannot fail.
        let _ = write!(list, "<dt id=\"{name}\"><code>{} {name}</code></dt><dd>{title}</dd>", status.as_u16());
        list
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|inner| references(inner, found));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn the_page_has_a_place_for_every_kind_of_problem() {
        assert!(PAGE.contains(PROBLEMS));
        assert!(Kind::ALL.iter().all(|kind| problems().contains(&format!("id=\"{}\"", kind.told().1))));
    }
}
