"""Counters for Prometheus, in a registry of their own."""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tpu_ui.graphs import WarmupState
from tpu_ui.jobs import Job, JobKind, JobQueue, JobState

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """What /metrics tells. `count` is given to the queue."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = {"registry": self.registry, "namespace": "tpu_ui"}
        self._requests = Counter("requests", "Requests that ended, by kind and state.", ["kind", "state"], **names)
        self._seconds = Counter("phase_seconds", "Seconds spent, by phase of a request.", ["phase"], **names)
        self._graphs = Counter("graphs_compiled", "Graphs that the device's compiler made for requests.", **names)
        self._warm = Counter("warm_hits", "Requests that were called warm and compiled nothing.", **names)
        self._pictures = Counter("pictures", "Pictures made.", **names)

    def count(self, job: Job) -> None:
        """A job has ended."""
        self._requests.labels(job.kind.value, job.state.value).inc()
        if job.state is not JobState.DONE or job.result is None:
            return
        report = job.result.report
        for phase in ("load", "compile", "encode", "denoise", "decode"):
            self._seconds.labels(phase).inc(getattr(report.timings, phase))
        self._graphs.inc(report.new_compiles)
        if job.kind is JobKind.GENERATE:
            self._warm.inc(int(report.was_warm))
            self._pictures.inc(len(report.seeds))

    def watch(self, queue: JobQueue) -> None:
        """Also tell of the queue and its engine, read at each scrape."""
        self.registry.register(_Now(queue))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Now(Collector):
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        queue, engine = self._queue, self._queue.engine
        yield GaugeMetricFamily("tpu_ui_queue_jobs", "Jobs that wait.", queue.waiting_count)
        yield GaugeMetricFamily("tpu_ui_device_ready", "1 once the device is open.", int(engine is not None))
        if engine is None:
            return
        yield from _replicas(queue)
        memory = engine.runtime.memory()
        yield GaugeMetricFamily("tpu_ui_memory_used_bytes", "Device memory in use.", memory.used_bytes)
        yield GaugeMetricFamily("tpu_ui_memory_total_bytes", "Device memory.", memory.total_bytes)
        promises = engine.ledger.promises()
        promised = CounterMetricFamily("tpu_ui_promises", "Requests called warm, by outcome.", labels=["outcome"])
        for outcome, number in promises.items():
            promised.add_metric([outcome], number)
        yield promised
        states = GaugeMetricFamily("tpu_ui_graph_keys", "Keys in the ledger, by state.", labels=["state"])
        known = [engine.ledger.state(record.key) for record in engine.ledger.records()]
        for state in WarmupState:
            states.add_metric([state.value], known.count(state))
        yield states


def _replicas(queue: JobQueue) -> Iterator[Metric]:
    statuses = queue.statuses()
    if not statuses:
        return
    up = GaugeMetricFamily("tpu_ui_replica_up", "1 while the replica is idle or running.", labels=["replica"])
    jobs = CounterMetricFamily("tpu_ui_replica_jobs", "Requests that the replica has run.", labels=["replica"])
    used = GaugeMetricFamily("tpu_ui_replica_memory_used_bytes", "Of the replica's device.", labels=["replica"])
    for number, status in enumerate(statuses, 1):
        up.add_metric([str(number)], int(status.state in ("idle", "running")))
        jobs.add_metric([str(number)], status.jobs)
        used.add_metric([str(number)], status.memory_used_bytes)
    yield from (up, jobs, used)
