"""What a process reports about its work: logs, metrics, series for Prometheus, traces, sinks."""
