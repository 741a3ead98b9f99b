{{- /* Templates shared by the objects of the chart. "part" is a dict: root, component, app, values. */ -}}

{{- /* A number or text as written in the values. Helm reads numbers as floats, which templates print with an
  exponent from a million on. */ -}}
{{- define "outrigger.plain" -}}
{{- if kindIs "float64" . }}
{{- if eq . (float64 (int64 .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if not (kindIs "invalid" .) }}{{ . }}
{{- end }}
{{- end -}}

{{- /* A list or a comma-separated text, as a comma-separated text. */ -}}
{{- define "outrigger.joined" -}}
{{ join "," . | nospace }}
{{- end -}}

{{- define "outrigger.tag" -}}
{{ include "outrigger.plain" (.Values.global.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- /* Labels of an object of a component. */ -}}
{{- define "outrigger.labels" -}}
{{- $labels := dict
  "app.kubernetes.io/name" .root.Release.Name
  "app.kubernetes.io/version" (include "outrigger.tag" .root)
  "app.kubernetes.io/part-of" "dapr"
  "app.kubernetes.io/managed-by" .root.Release.Service
  "app.kubernetes.io/component" .component -}}
{{- range $name, $value := .root.Values.global.k8sLabels }}
{{- $_ := set $labels $name (tpl (include "outrigger.plain" $value) $.root) }}
{{- end }}
{{- with .app }}{{ $_ := set $labels "app" . }}{{ end }}
{{- toYaml $labels }}
{{- end -}}

{{- /* An image reference: a name with a slash is used unchanged. */ -}}
{{- define "outrigger.image" -}}
{{- if contains "/" .name }}{{ .name }}{{ else }}{{ .root.Values.global.registry }}/{{ .name }}:{{ include "outrigger.tag" .root }}{{ end }}
{{- end -}}

{{- define "outrigger.sentry-address" -}}
{{ .Values.global.mtls.sentryAddress | default (printf "dapr-sentry.%s.svc.cluster.local:443" .Release.Namespace) }}
{{- end -}}

{{- /* File name of the root certificates in the trust bundle, as sentry writes it. */ -}}
{{- define "outrigger.root-name" -}}
{{ base (.Values.global.issuerFilenames.ca | default "ca.crt") }}
{{- end -}}

{{- define "outrigger.anchors" -}}
/var/run/secrets/dapr.io/tls/{{ include "outrigger.root-name" . }}
{{- end -}}

{{- /* Port of placement. Running sidecars, and those of Dapr's injector, use this port regardless of apiPort, and a headless
  Service does not translate ports. So apiPort applies only to the Service. */ -}}
{{- define "outrigger.placement-port" -}}
50005
{{- end -}}

{{- define "outrigger.trust-domain" -}}
{{ .Values.global.mtls.controlPlaneTrustDomain }}
{{- end -}}

{{- /* Name of the control plane's Configuration, if it is not the default. */ -}}
{{- define "outrigger.other-configuration" -}}
{{- with .Values.dapr_config.dapr_default_system_config_name }}{{ if ne . "daprsystem" }}{{ . }}{{ end }}{{ end -}}
{{- end -}}

{{- /* Kind of roles: those of the release's namespace, or of the cluster. */ -}}
{{- define "outrigger.scope" -}}
{{ if .Values.global.rbac.namespaced }}Role{{ else }}ClusterRole{{ end }}
{{- end -}}

{{- define "outrigger.prometheus" -}}
{{- if .Values.global.prometheus.enabled }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .Values.global.prometheus.port | quote }}
prometheus.io/path: "/"
{{- end }}
{{- end -}}

{{- define "outrigger.metrics-port" -}}
{{- if .Values.global.prometheus.enabled }}
- name: metrics
  port: {{ .Values.global.prometheus.port }}
  targetPort: {{ .Values.global.prometheus.port }}
  protocol: TCP
{{- end }}
{{- end -}}

{{- /* Arguments of all processes: the log and metrics. */ -}}
{{- define "outrigger.arguments" -}}
- --log-level
- {{ ternary "debug" .values.logLevel .values.debug.enabled | lower | quote }}
{{- if .root.Values.global.logAsJson }}
- --log-as-json
{{- end }}
{{- if .root.Values.global.prometheus.enabled }}
- --enable-metrics
- --metrics-port
- {{ .root.Values.global.prometheus.port | quote }}
{{- else }}
- --enable-metrics=false
{{- end }}
{{- end -}}

{{- /* TLS arguments of processes that get their identity from sentry. */ -}}
{{- define "outrigger.tls-arguments" -}}
- --tls-enabled
- --trust-domain={{ include "outrigger.trust-domain" . }}
- --trust-anchors-file={{ include "outrigger.anchors" . }}
- --sentry-address={{ include "outrigger.sentry-address" . }}
- --mode=kubernetes
{{- end -}}

{{- define "outrigger.environment" -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- range $name, $value := .values.extraEnvVars }}
- name: {{ $name }}
  value: {{ include "outrigger.plain" $value | quote }}
{{- end }}
{{- end -}}

{{- define "outrigger.probe" -}}
httpGet:
  path: /healthz
  port: {{ .port }}
initialDelaySeconds: {{ .probe.initialDelaySeconds }}
periodSeconds: {{ .probe.periodSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
{{- end -}}

{{- /* Fields of every container: image, probes, resources, security. Additional keys of the dict: binary, image, health,
  nonRoot. */ -}}
{{- define "outrigger.container" -}}
name: {{ .app }}
image: {{ include "outrigger.image" (dict "root" .root "name" .image) }}
imagePullPolicy: {{ .root.Values.global.imagePullPolicy }}
command: ["/{{ .binary }}"]
livenessProbe:
  {{- include "outrigger.probe" (dict "probe" .values.livenessProbe "port" .health) | nindent 2 }}
readinessProbe:
  {{- include "outrigger.probe" (dict "probe" .values.readinessProbe "port" .health) | nindent 2 }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  runAsNonRoot: {{ .nonRoot }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  {{- if eq .root.Values.global.daprControlPlaneOs "linux" }}
  capabilities:
    drop: [ALL]
  {{- end }}
  {{- with .root.Values.global.seccompProfile }}
  seccompProfile:
    type: {{ . }}
  {{- end }}
{{- end -}}

{{- /* The trust bundle, and the token that authenticates a process to sentry. */ -}}
{{- define "outrigger.identity-mounts" -}}
- name: dapr-trust-bundle
  mountPath: /var/run/secrets/dapr.io/tls
  readOnly: true
{{- if .Values.global.mtls.mountSentryVolume }}
- name: dapr-identity-token
  mountPath: /var/run/secrets/dapr.io/sentrytoken
  readOnly: true
{{- end }}
{{- end -}}

{{- define "outrigger.identity-volumes" -}}
- name: dapr-trust-bundle
  configMap:
    name: dapr-trust-bundle
{{- if .Values.global.mtls.mountSentryVolume }}
- name: dapr-identity-token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 600
          audience: spiffe://{{ include "outrigger.trust-domain" . }}/ns/{{ .Release.Namespace }}/dapr-sentry
{{- end }}
{{- end -}}

{{- /* Keeps the replicas of a part apart. */ -}}
{{- define "outrigger.apart" -}}
topologyKey: {{ .root.Values.global.ha.topologyKey }}
labelSelector:
  matchExpressions:
    - key: app
      operator: In
      values: [{{ .app }}]
{{- end -}}

{{- /* Additional containers of a pod, for its list of containers. Keys of the dict: root, service. */ -}}
{{- define "outrigger.extra-containers" -}}
{{- with index .root.Values.global.extraContainers .service }}
{{- toYaml . }}
{{- end }}
{{- end -}}

{{- define "outrigger.init-containers" -}}
{{- with index .root.Values.global.initContainers .service }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Scheduling of pods, and their image pull secrets. Additional key of the dict: spread. */ -}}
{{- define "outrigger.placing" -}}
{{- $global := .root.Values.global -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $preferred := "preferredDuringSchedulingIgnoredDuringExecution" -}}
{{- $policy := ternary $global.ha.podAntiAffinityPolicy $preferred (has .component (list "placement" "scheduler")) -}}
{{- if not (has $policy (list $preferred $required)) -}}
{{- fail (printf "global.ha.podAntiAffinityPolicy must be either '%s' or '%s'" $preferred $required) -}}
{{- end -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: kubernetes.io/os
              operator: In
              values: [{{ $global.daprControlPlaneOs }}]
            {{- with $global.daprControlPlaneArch }}
            - key: kubernetes.io/arch
              operator: In
              values: [{{ . }}]
            {{- end }}
  {{- if .spread }}
  podAntiAffinity:
    {{ $policy }}:
      {{- if eq $policy $required }}
      - {{- include "outrigger.apart" . | nindent 8 }}
      {{- else }}
      - weight: 100
        podAffinityTerm:
          {{- include "outrigger.apart" . | nindent 10 }}
      {{- end }}
  {{- end }}
{{- with $global.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $global.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $global.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $global.imagePullSecrets }}
imagePullSecrets:
  {{- if kindIs "string" . }}
  - name: {{ . }}
  {{- else }}
  {{- range . }}
  - name: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ .name }}{{ end }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Metadata of a pod. Additional keys of the dict: service (its name in the control plane), annotations. */ -}}
{{- define "outrigger.pod-metadata" -}}
labels:
  {{- include "outrigger.labels" . | nindent 2 }}
  {{- with .root.Values.global.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  dapr.io/control-plane: {{ .service }}
  {{- include "outrigger.prometheus" .root | nindent 2 }}
  {{- with .annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "outrigger.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "outrigger.labels" . | nindent 4 }}
spec:
  {{- $disruption := .root.Values.global.ha.disruption }}
  {{- /* Kubernetes accepts only one of them. */}}
  {{- if $disruption.minimumAvailable }}
  minAvailable: {{ include "outrigger.plain" $disruption.minimumAvailable }}
  {{- else }}
  maxUnavailable: {{ include "outrigger.plain" $disruption.maximumUnavailable }}
  {{- end }}
  selector:
    matchLabels:
      app: {{ .app }}
{{- end -}}

{{- /* The only namespace that the operator watches: the configured one, or the one of its permissions. Empty if it watches all. */ -}}
{{- define "outrigger.watched" -}}
{{ .Values.dapr_operator.watchNamespace | default (ternary .Release.Namespace "" .Values.global.rbac.namespaced) }}
{{- end -}}

{{- /* Binds a role of its scope to a service account of the release. Keys of the dict: root, role, kind, account; namespace, if
  it is not the release's. */ -}}
{{- define "outrigger.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .role }}
  {{- if eq .kind "Role" }}
  namespace: {{ .namespace | default .root.Release.Namespace }}
  {{- end }}
  labels:
    {{- include "outrigger.labels" (dict "root" .root "component" "rbac") | nindent 4 }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ .root.Release.Namespace }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
{{- end -}}
