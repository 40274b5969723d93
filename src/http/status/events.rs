//! The feed as server-sent events. The `id` of an event is also the one its client comes back with; comments keep the
//! connection open while there is nothing to tell.

use std::convert::Infallible;

use actix_web::HttpResponse;
use actix_web::http::header;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::actors::status_hub::{StatusFeed, Subscription, Told};

/// Messages on their way to the socket, besides what the subscription lets wait.
const ON_THE_WAY: usize = 16;

pub fn respond(feed: StatusFeed, subscription: Subscription) -> HttpResponse {
    let (sender, mut messages) = mpsc::channel(ON_THE_WAY);
    actix_web::rt::spawn(serve(feed, subscription, sender));
    let body = stream::poll_fn(move |cx| messages.poll_recv(cx).map(|message| message.map(Ok::<Bytes, Infallible>)));
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        // Asks a proxy in between to pass every event on at once.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(body)
}

async fn serve(feed: StatusFeed, subscription: Subscription, peer: mpsc::Sender<Bytes>) {
    tokio::select! {
        () = tell(subscription, &peer, &feed) => {}
        () = keep_alive(&peer, &feed) => {}
        () = peer.closed() => {}
        () = feed.closed() => {}
    }
}

/// Tells the peer everything until it lags, or takes nothing for too long.
async fn tell(mut subscription: Subscription, peer: &mpsc::Sender<Bytes>, feed: &StatusFeed) {
    loop {
        let told = subscription.next().await;
        let message = match &told {
            Told::Event { id, json } => format!("id: {id}\ndata: {json}\n\n"),
            Told::Gap { .. } | Told::Lagged { .. } => format!("data: {}\n\n", told.json()),
        };
        let taken = matches!(timeout(feed.ping() * 2, peer.send(message.into())).await, Ok(Ok(())));
        if !taken || matches!(told, Told::Lagged { .. }) {
            return;
        }
    }
}

/// Shows the peer that the feed is there, until it takes nothing for too long.
async fn keep_alive(peer: &mpsc::Sender<Bytes>, feed: &StatusFeed) {
    while let Ok(Ok(())) = timeout(feed.ping() * 2, peer.send(Bytes::from_static(b":\n\n"))).await {
        tokio::time::sleep(feed.ping()).await;
    }
}
