# Builds the one binary that has every role. Nothing here needs BuildKit.

FROM rust:1-bookworm AS builder
WORKDIR /build
# The dependencies, with nothing of ours: built again only when they change.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src && touch src/lib.rs && echo 'fn main() {}' > src/main.rs \
    && cargo build --profile dist --locked \
    && rm -r src
COPY config config
COPY src src
# The files just copied may be older than what was built from the empty ones.
RUN touch src/lib.rs src/main.rs \
    && cargo build --profile dist --locked \
    && strip --strip-debug -o /drone-delivery target/dist/drone-delivery

FROM debian:bookworm-slim
# The HTTP client reads the system's authorities when it starts, whatever it is asked to reach.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/drone-delivery --create-home --shell /usr/sbin/nologin drone
COPY --from=builder /drone-delivery /usr/local/bin/drone-delivery
COPY config /etc/drone-delivery
USER drone
# The embedded engine's folder is below this one: mount a volume here to keep it.
WORKDIR /var/lib/drone-delivery
VOLUME /var/lib/drone-delivery
ENV DRONE__HTTP__LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=6s --start-period=30s --retries=6 CMD ["drone-delivery", "health"]
ENTRYPOINT ["drone-delivery"]
CMD ["serve"]
