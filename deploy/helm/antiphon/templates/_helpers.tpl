{{- define "antiphon.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "antiphon.sandbox" -}}
{{ include "antiphon.name" . }}-sandbox
{{- end -}}

{{- define "antiphon.selector" -}}
app.kubernetes.io/name: antiphon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "antiphon.labels" -}}
{{ include "antiphon.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "antiphon.image" -}}
{{ .Values.image.repository }}{{ if hasPrefix "sha256:" .Values.image.tag }}@{{ else }}:{{ end }}{{ .Values.image.tag }}
{{- end -}}

{{- define "antiphon.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "antiphon.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "antiphon.environment" -}}
envFrom:
  - secretRef:
      name: {{ .Values.existingSecret }}
env:
  - name: POD_IP
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: ANTIPHON_REPLICA_URL
    value: http://$(POD_IP):8000
  - name: ANTIPHON_DRAIN_S
    value: {{ .Values.drainSeconds | quote }}
  - name: ANTIPHON_METRICS
    value: {{ .Values.metrics }}
  - name: ANTIPHON_VECTORS
    value: {{ .Values.vectors | quote }}
  {{- with .Values.sandbox.kubernetes }}
  {{- if .enabled }}
  - name: ANTIPHON_SANDBOX
    value: kubernetes
  - name: ANTIPHON_SANDBOX_WARM_POOL
    value: {{ include "antiphon.sandbox" $ }}
  - name: ANTIPHON_SANDBOX_MEMORY
    value: {{ .memory | quote }}
  - name: ANTIPHON_SANDBOX_DISK_MB
    value: {{ .diskMiB | quote }}
  {{- with .router }}
  - name: ANTIPHON_SANDBOX_ROUTER
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .Values.opentelemetry }}
  {{- if .endpoint }}
  - name: ANTIPHON_OTLP_ENDPOINT
    value: {{ .endpoint | quote }}
  - name: ANTIPHON_TRACES
    value: {{ ternary "otlp" "off" .traces | quote }}
  - name: ANTIPHON_METRICS_EXPORT
    value: {{ ternary "otlp" "off" .metrics | quote }}
  {{- end }}
  {{- end }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "antiphon.mounts" -}}
volumeMounts:
  - name: settings
    mountPath: /etc/antiphon
    readOnly: true
  - name: models
    mountPath: /var/lib/antiphon/models
  - name: scratch
    mountPath: /tmp
    subPath: tmp
  - name: scratch
    mountPath: /var/lib/antiphon/.cache
    subPath: cache
{{- end -}}
