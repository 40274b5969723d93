//! `/api/accounts/{id}`

use super::*;
use crate::services::account::Account;

pub fn routes(config: &mut web::ServiceConfig) {
    config.service(
        web::resource("/api/accounts/{id}")
            .route(web::get().to(get))
            .route(web::put().to(set))
            .route(web::delete().to(delete)),
    );
}

async fn get(calls: Shared, path: web::Path<String>) -> Answer {
    found(calls.services.account.get(name(&path)?).await?, "account")
}

async fn set(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = name(&path)?;
    let account = calls.read(&request, payload, account).await?;
    let existed = existed(calls.services.account.get(id).await)?;
    calls.services.account.put(&[(id.to_owned(), account.clone())]).await?;
    Ok(put(existed, &account))
}

fn account(fields: &mut Fields<'_, '_>) -> Option<Account> {
    let address = |value: &Value| text(value).filter(|text| text.contains('@'));
    let url = |value: &Value| text(value).filter(|text| text.starts_with("http://") || text.starts_with("https://"));
    let status = fields.required("status", "Active or Suspended", typed);
    let name = fields.optional("name", TEXT, text);
    let email = fields.optional("email", "an e-mail address", address);
    let webhook = fields.optional("webhook", "an http or https address", url);
    Some(Account { status: status?, name, email, webhook })
}

async fn delete(calls: Shared, path: web::Path<String>) -> Answer {
    calls.services.account.delete(name(&path)?).await?;
    Ok(gone())
}
