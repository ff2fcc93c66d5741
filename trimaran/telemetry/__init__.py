"""What a process reports about its work.

run_files       logs, metrics.jsonl, TensorBoard's files, the timeline
metrics         every number of a step or a validation: its key, unit and meaning
series          what processes count for Prometheus; `exposition` answers its questions
tracing         spans for OpenTelemetry, where they are wanted; `otel` makes them
scope           what the work at hand is about, for log lines and spans
sinks           services that show a run's numbers
other_names     what other projects call these numbers; `validation_names` those of a validation
"""
