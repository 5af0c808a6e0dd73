"""Metrics: what a broker tells Prometheus about itself.

    counters.py    what the services count while they work; no service knows the rest of this folder
    requests.py    what the dispatcher counts per API, if metrics are served
    catalogue.py   every metric: name, type, help, labels, and the JMX name that Kafka people know
    collector.py   reads the services in slices, and writes Prometheus' text
    pins.py        the partitions whose last stable offset lags, and since when
    stalls.py      the longest stall of the loop since the last scrape
    http.py        a bounded responder for GET and HEAD on the broker's own loop
    endpoint.py    /metrics, /healthz and /readyz

prometheus-client is imported by `collector.py` alone, and that only if metrics are served.
"""
