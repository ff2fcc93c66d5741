{{/* Of a part of the release: dict "root" $ "part" "manager". */}}
{{- define "trimaran.labels" -}}
app.kubernetes.io/name: trimaran
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "trimaran.meta" -}}
name: {{ include "trimaran.name" . }}
labels:
  {{- include "trimaran.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "trimaran.name" -}}
{{ .root.Release.Name | trunc 40 | trimSuffix "-" }}-{{ .part }}
{{- end }}

{{/* dict "root" $ "kind" "rollout" "device" "npu" */}}
{{- define "trimaran.image" -}}
image: {{ .root.Values.image.name }}-{{ .kind }}:{{ .root.Values.image.version | default .root.Chart.AppVersion }}-{{ .device }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end }}

{{/* As deploy/compose: another user than root, nothing that can be written but what is mounted. */}}
{{- define "trimaran.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
# SIGTERM drains: a replica gives its groups away first. Whatever a service does then, it ends within 20 s.
terminationGracePeriodSeconds: 60
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "trimaran.hardened" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{/* A frozen process is killed after 60 s. One that waits, starts or loads is well, up to its own deadline. */}}
{{- define "trimaran.probes" -}}
startupProbe:
  exec: {command: [trimaran, health]}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: {command: [trimaran, health]}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 4
{{- end }}

{{- define "trimaran.servicesSecret" -}}
{{ .Values.secrets.services | default (include "trimaran.name" (dict "root" . "part" "services")) }}
{{- end }}

{{- define "trimaran.clientsSecret" -}}
{{ .Values.secrets.clients | default (include "trimaran.name" (dict "root" . "part" "clients")) }}
{{- end }}

{{/* A raylet that died is noticed after 3 s, as docs/deploy.md has it for hosts; Ray's own default is 15. */}}
{{- define "trimaran.rayEnvironment" -}}
- {name: RAY_health_check_initial_delay_ms, value: "1000"}
- {name: RAY_health_check_period_ms, value: "1000"}
- {name: RAY_health_check_failure_threshold, value: "3"}
{{- end }}

{{- define "trimaran.store" -}}
{{- $own := printf "%s:6379" (include "trimaran.name" (dict "root" . "part" "redis")) -}}
redis://{{ .Values.redis.address | default $own }}/0?prefix={{ .Release.Namespace }}-{{ .Release.Name }}&password_file=/secrets/redis-password
{{- end }}

{{- define "trimaran.plugin" -}}
http://{{ include "trimaran.name" (dict "root" . "part" "plugin") }}:8700
{{- end }}

{{- define "trimaran.hasClaim" -}}
{{- if or .Values.storage.claim.name (not .Values.storage.bucket.url) }}yes{{ end }}
{{- end }}

{{/* dict "root" $ "runs" "shared" or "own", "secrets" (list of keys) */}}
{{- define "trimaran.volumes" -}}
- name: tmp
  emptyDir: {}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "trimaran.servicesSecret" .root }}
          items:
            {{- range .secrets }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
      - configMap:
          name: {{ include "trimaran.name" (dict "root" .root "part" "config") }}
          items: [{key: store, path: store}]
- name: runs
  {{- if and (eq .runs "shared") (include "trimaran.hasClaim" .root) }}
  persistentVolumeClaim:
    claimName: {{ .root.Values.storage.claim.name | default (include "trimaran.name" (dict "root" .root "part" "runs")) }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if .root.Values.tls.services }}
- name: tls
  secret: {secretName: {{ .root.Values.tls.services }}, defaultMode: 0440}
{{- end }}
{{- if .root.Values.models.claim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .root.Values.models.claim }}, readOnly: true}
{{- end }}
{{- if .root.Values.demo.enabled }}
- name: example
  emptyDir: {sizeLimit: 2Gi}
{{- end }}
{{- end }}

{{- define "trimaran.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: secrets, mountPath: /secrets, readOnly: true}
- {name: runs, mountPath: /runs}
{{- if .Values.tls.services }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- include "trimaran.data" . }}
{{- end }}

{{- define "trimaran.data" -}}
{{- if .Values.models.claim }}
- {name: models, mountPath: /models, readOnly: true}
{{- else if .Values.demo.enabled }}
- {name: example, subPath: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if .Values.demo.enabled }}
- {name: example, subPath: examples, mountPath: /examples, readOnly: true}
{{- end }}
{{- end }}

{{/* Compose's `prepare` copies the example's model into a volume; here each pod has its own copy. In folders
of the volume: anybody may write into the volume itself, and so the manager would read nothing there. */}}
{{- define "trimaran.example" -}}
{{- if .Values.demo.enabled }}
initContainers:
  - name: example
    {{- include "trimaran.image" (dict "root" . "kind" "demo" "device" "cpu") | nindent 4 }}
    {{- include "trimaran.hardened" . | nindent 4 }}
    command: [cp, -r, /examples{{ if not .Values.models.claim }}, /models{{ end }}, /to]
    volumeMounts:
      - {name: example, mountPath: /to}
{{- end }}
{{- end }}

{{/* Of `trimaran serve KIND`: as in deploy/compose. */}}
{{- define "trimaran.joins" -}}
- --store-file
- /secrets/store
- --token-file
- /secrets/token
- --run-folder
- /runs
- --network
- trusted
{{- if .Values.tls.services }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --tls-ca=/tls/ca.crt
{{- with .Values.tls.serverName }}
- --tls-name={{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "trimaran.bucket" -}}
{{- with .Values.storage.bucket.secret }}
envFrom: [{secretRef: {name: {{ . }}}}]
{{- end }}
{{- end }}

{{/* dict "root" $ "key" "rollout": the pool's own tree. */}}
{{- define "trimaran.pool" -}}
{{- $name := (index .root.Values .key).pool -}}
{{- $pool := get .root.Values.pools $name -}}
{{- if not $pool }}
{{- fail (printf "%s.pool: there is no pool %s; pools has %s" .key $name (keys .root.Values.pools | sortAlpha | join ", ")) }}
{{- end }}
{{- $resource := dict "npu" "huawei.com/Ascend910" "cuda" "nvidia.com/gpu" "cpu" "" -}}
{{- toYaml (merge (deepCopy $pool) (dict "resource" (get $resource $pool.device))) }}
{{- end }}

{{/* What values say of a pod comes in by these three. Of the pod: */}}
{{- define "trimaran.place" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "runtimeClassName" }}
{{- with get $ $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* of its container, dict "own" "env" (our own variables), and with devices "pool" "devices"; */}}
{{- define "trimaran.container" -}}
{{- with concat (.env | default list) (.own.env | default list) }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $resources := deepCopy .own.resources }}
{{- if dig "resource" "" (.pool | default dict) }}
{{- $_ := set $resources "limits" (merge (dict .pool.resource .devices) ($resources.limits | default dict)) }}
{{- end }}
resources: {{- toYaml $resources | nindent 2 }}
{{- end }}

{{/* and "volumes" or "volumeMounts", behind ours: dict "own" "key". */}}
{{- define "trimaran.more" -}}
{{- with get .own .key }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "trimaran.check" -}}
{{- if not .Values.network.trusted }}
{{- fail "network.trusted: tensors travel between pods without TLS, so whoever reads the nodes' network reads the model; say network.trusted: true where nobody does (tls.services adds TLS for everything else)" }}
{{- end }}
{{- with .Values.rollout }}
{{- if mod .devices (.hosts | default 1) }}
{{- fail (printf "rollout.hosts: %v hosts have no equal parts of a replica's %v devices (rollout.devices); as in the run, where hosts divides tensor_parallel" .hosts .devices) }}
{{- end }}
{{- end }}
{{- if and .Values.storage.bucket.url .Values.storage.claim.name }}
{{- fail "storage: has a claim and a bucket; name one of them" }}
{{- end }}
{{- end }}
