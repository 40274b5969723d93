//! A service somewhere else, called over HTTP with the contract that this program serves itself: `PUT` does a step,
//! `DELETE` undoes it, both idempotent. What may pass (no connection, no answer in time, 5xx, 429) is transient; a
//! refusal carries its stable code in the problem's `code`, so it is the same one on this side.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use awc::error::SendRequestError;
use awc::http::{Method, StatusCode};
use awc::{Client, ClientRequest};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::entities::already_cancelled;
use super::package::Package;
use super::transport::Booking;
use super::{Order, Service, StepError};
use crate::config::Agent;
use crate::domain::workflow::{Output, Reservation, Route};
use crate::domain::{DeliveryRequest, Failure, ReasonCode, StepName};

/// Calls at once for one batch.
const AT_ONCE: usize = 32;
/// The largest answer that is read.
const LARGEST: usize = 65_536;

/// The body of a `PUT`: the request, and what the steps before have decided.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    request: &'a DeliveryRequest,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a Route>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<&'a Reservation>,
}

/// What is read of a problem document.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: Option<ReasonCode>,
    detail: Option<String>,
}

pub struct Remote {
    step: StepName,
    url: String,
    client: Client,
}

impl Remote {
    /// The service of a step at the settings' address.
    #[must_use]
    pub fn new(step: StepName, settings: &Agent) -> Self {
        // One is enough for the process: whoever comes first has set it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The agent's time-out is the one that counts; this one ends what the agent has given up.
        let timeout = settings.timeout + Duration::from_secs(1);
        let client = Client::builder().timeout(timeout).disable_redirects().finish();
        Self { step, url: settings.url.trim_end_matches('/').to_owned(), client }
    }

    /// Where an order's entity is.
    fn address(&self, order: &Order) -> String {
        let (url, id) = (&self.url, &order.id);
        match self.step {
            StepName::Account => format!("{url}/api/accounts/{}", order.request.owner_id),
            StepName::Package => format!("{url}/api/packages/{}", order.request.package_info.package_id),
            StepName::Transport => format!("{url}/api/thirdpartydeliveries/{id}"),
            StepName::Drone => format!("{url}/api/dronedeliveries/{id}"),
            StepName::Delivery => format!("{url}/api/deliveries/{id}"),
        }
    }

    fn request(&self, method: Method, address: &str, order: &Order) -> ClientRequest {
        let request = self.client.request(method, address);
        match &order.trace {
            Some(trace) => request.insert_header(("traceparent", trace.as_str())),
            None => request,
        }
    }

    /// Does the step for an order, or changes what was done when the address says so.
    async fn put(&self, address: String, order: &Order) -> Result<Output, StepError> {
        let request = self.request(Method::PUT, &address, order);
        let answer = if self.step == StepName::Package {
            answer(request.send_json(&Package::of(&order.id, &order.request.package_info)).await).await?
        } else {
            let Order { request: asked, route, reservation, .. } = order;
            let document = Document { request: asked, route: route.as_ref(), reservation: reservation.as_ref() };
            answer(request.send_json(&document).await).await?
        };
        match self.step {
            StepName::Transport => read::<Booking>(&answer).map(|booking| Output::Route(booking.route)),
            StepName::Drone => read::<Reservation>(&answer).map(Output::Reservation),
            _ => Ok(Output::Nothing),
        }
    }

    async fn delete(&self, order: &Order) -> Result<(), StepError> {
        let mut address = self.address(order);
        if self.step == StepName::Package {
            address = format!("{address}?deliveryId={}", order.id);
        }
        match answer(self.request(Method::DELETE, &address, order).send().await).await {
            Ok(_) | Err(Answer::Refused(StatusCode::NOT_FOUND | StatusCode::GONE, _)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Every owner's account is asked for once.
    async fn check_accounts(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut owners = HashMap::new();
        for order in orders {
            owners.entry(order.request.owner_id.as_str()).or_insert(order);
        }
        let ask = |(owner, order): (_, &Order)| {
            let request = self.request(Method::GET, &self.address(order), order);
            async move { (owner, account(owner, answer(request.send().await).await)) }
        };
        let verdicts: HashMap<&str, _> = stream::iter(owners).map(ask).buffer_unordered(AT_ONCE).collect().await;
        orders.iter().map(|order| verdicts[order.request.owner_id.as_str()].clone()).collect()
    }
}

fn account(owner: &str, answer: Result<Bytes, Answer>) -> Result<Output, StepError> {
    let account = match answer {
        Ok(body) => Some(read::<Account>(&body)?),
        Err(Answer::Refused(StatusCode::NOT_FOUND, _)) => None,
        Err(error) => return Err(error.into()),
    };
    Account::admit(account.as_ref(), owner).map(|()| Output::Nothing)
}

/// How a call ended that did not work.
enum Answer {
    Transient(String),
    Refused(StatusCode, Problem),
}

impl From<Answer> for StepError {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Transient(text) => Self::Transient(text),
            Answer::Refused(StatusCode::CONFLICT, Problem { code: None, .. }) => already_cancelled(),
            Answer::Refused(status, problem) => {
                let text = problem.detail.unwrap_or_else(|| format!("the service answered {status}"));
                Self::Refused(Failure::new(problem.code.unwrap_or(ReasonCode::ServiceRefused), text))
            }
        }
    }
}

type Response<S> = awc::ClientResponse<S>;

/// The body of an answer that says that it worked.
async fn answer<S>(sent: Result<Response<S>, SendRequestError>) -> Result<Bytes, Answer>
where
    S: futures_util::Stream<Item = Result<Bytes, awc::error::PayloadError>>,
{
    let transient = |text: String| Answer::Transient(format!("the service could not be called: {text}"));
    let mut response = sent.map_err(|error| transient(error.to_string()))?;
    let status = response.status();
    let body = response.body().limit(LARGEST).await;
    if status.is_success() {
        return body.map_err(|error| transient(error.to_string()));
    }
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    if !status.is_client_error() || passing.contains(&status) {
        return Err(Answer::Transient(format!("the service answered {status}")));
    }
    let problem = body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
    Err(Answer::Refused(status, problem))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, StepError> {
    serde_json::from_slice(body)
        .map_err(|error| StepError::Transient(format!("the service's answer cannot be read: {error}")))
}

#[async_trait(?Send)]
impl Service for Remote {
    fn step(&self) -> StepName {
        self.step
    }

    fn max_batch(&self) -> usize {
        1
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        if self.step == StepName::Account {
            return self.check_accounts(orders).await;
        }
        stream::iter(orders).map(|order| self.put(self.address(order), order)).buffered(AT_ONCE).collect().await
    }

    /// Accounts and packages have nothing that a change of plan touches.
    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        if matches!(self.step, StepName::Account | StepName::Package) {
            return orders.iter().map(|_| Ok(Output::Nothing)).collect();
        }
        let change = |order| self.put(format!("{}?change=true", self.address(order)), order);
        stream::iter(orders).map(change).buffered(AT_ONCE).collect().await
    }

    /// An account check leaves nothing to undo: the account is the owner's.
    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        if self.step == StepName::Account {
            return orders.iter().map(|_| Ok(())).collect();
        }
        stream::iter(orders).map(|order| self.delete(order)).buffered(AT_ONCE).collect().await
    }
}
