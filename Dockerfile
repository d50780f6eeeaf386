# A server in a container: `docker build -t holdfast .`, see docs/how-to/operate.md.
FROM python:3.13-slim AS build

WORKDIR /src
COPY requirements/tools.txt requirements/run.txt requirements/
# Without a package index of its own, pip takes the one it is configured with.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
RUN python -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt \
    && python -m pip install --no-cache-dir --require-hashes -r requirements/tools.txt
COPY pyproject.toml README.md LICENSE ./
COPY man man
COPY packaging packaging
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/holdfast/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.13-slim

# git for agents, bubblewrap for sandboxes. Add what your commands need.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap ca-certificates git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 holdfast \
    && install -d -o holdfast -g holdfast /workspace /var/log/holdfast \
    && install -d -m 0700 -o holdfast -g holdfast /var/lib/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH="/opt/holdfast/bin:$PATH"

USER holdfast
WORKDIR /workspace
EXPOSE 4500
STOPSIGNAL SIGTERM
# The guardian is process 1: it reaps orphans and passes the signal to stop on.
ENTRYPOINT ["holdfast", "serve", "--listen", "ws://0.0.0.0:4500"]
# The token of its clients is made there, unless a volume has one.
CMD ["--token-file", "/var/lib/holdfast/token", "--log-level", "info"]
