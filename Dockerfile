# syntax=docker/dockerfile:1
# The proxy as an image: built in one stage, run in another that holds no compiler, no pip and no shell history.
#
#   docker build -t context-proxy .
#   docker run --rm -p 127.0.0.1:8080:8080 -v context-proxy:/data context-proxy
#
# The first start makes keys in /data/keys and prints them once. A config file with keys of your own takes their place:
#
#   docker run --rm -p 127.0.0.1:8080:8080 -v context-proxy:/data \
#     -v "$PWD/config.toml:/config.toml:ro" -e CONTEXT_PROXY_CONFIG=/config.toml context-proxy
#
# Both stages are the same Debian, so that what was compiled in the first runs in the second.

FROM debian:trixie-slim AS build
# Versions come from the distribution's release, which is pinned by its name.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-pip python3-venv binutils \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
# Everything from the lock, by hash; what only the building needs goes to an environment of its own.
RUN python3 -m venv /build \
 && /build/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
 && python3 -m venv --without-pip /opt/context-proxy \
 && /build/bin/pip --python /opt/context-proxy/bin/python install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
 && /build/bin/pip --python /opt/context-proxy/bin/python uninstall -y hatchling editables pathspec pluggy trove-classifiers
# Packages of extras that the lock leaves out: `--build-arg PACKAGES=botocore` for requests signed for AWS.
ARG PACKAGES=""
# hadolint ignore=SC2086
RUN if [ -n "$PACKAGES" ]; then /build/bin/pip --python /opt/context-proxy/bin/python install --no-cache-dir $PACKAGES; fi
COPY pyproject.toml README.md LICENSE .gitignore ./
COPY config ./config
COPY proxy ./proxy
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /build/bin/pip --python /opt/context-proxy/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && find /opt/context-proxy -name '*.so' -exec strip --strip-unneeded {} + \
 && find /opt/context-proxy \( -name '*.pyx' -o -name '*.pxd' -o -name '*.c' -o -name '*.h' -o -name 'tests' \) -prune -exec rm -rf {} + \
 && mkdir -m 700 /data \
 && mkdir -m 755 /keys

FROM debian:trixie-slim
LABEL org.opencontainers.image.title="context-proxy" \
      org.opencontainers.image.description="An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful" \
      org.opencontainers.image.licenses="MIT"
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/context-proxy /opt/context-proxy
# Named volumes that are mounted here for the first time take over owner and mode.
COPY --from=build --chown=10001:10001 /data /data
COPY --from=build --chown=10001:10001 /keys /keys
ENV PATH=/opt/context-proxy/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CONTEXT_PROXY_HOST=0.0.0.0 \
    CONTEXT_PROXY_KEYS_DIR=/data/keys \
    CONTEXT_PROXY_DB=/data/context-proxy.sqlite3
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# /readyz says no while it drains, so that a balancer looks elsewhere; /healthz, asked here, only whether it lives.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["context-proxy"]
CMD ["serve"]
