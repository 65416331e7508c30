{{/* Names and labels; each takes a dictionary of `root` and `role`. */}}
{{- define "taskframework.name" -}}
{{- printf "%s-%s" (trunc 50 .root.Release.Name | trimSuffix "-") .role -}}
{{- end }}

{{- define "taskframework.selector" -}}
app.kubernetes.io/name: taskframework
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "taskframework.labels" -}}
{{ include "taskframework.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* Settings by section and key as environment variables. */}}
{{- define "taskframework.settings" -}}
{{- range $section, $keys := . }}
{{- range $key, $value := $keys }}
- name: {{ printf "TASKFRAMEWORK_%s__%s" (upper $section) (upper $key) }}
  value: {{ if kindIs "string" $value }}{{ quote $value }}{{ else }}{{ toJson $value | quote }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A pod: `own` are the settings of the role, `port` is where it serves its health. */}}
{{- define "taskframework.pod" -}}
metadata:
  labels:
    {{- include "taskframework.labels" . | nindent 4 }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .port | quote }}
spec:
  automountServiceAccountToken: false
  # shutdown.await_termination_timeout, what comes before it, and time to hand back and to close.
  terminationGracePeriodSeconds: {{ add .root.Values.stopSeconds .pause 15 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "taskframework.selector" . | nindent 10 }}
  containers:
    - name: {{ .role }}
      image: {{ printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: [{{ .role }}]
      env:
        - name: TASKFRAMEWORK_PROFILE
          value: prod
        - name: TASKFRAMEWORK_BROKER__URL
          valueFrom:
            secretKeyRef:
              name: {{ .root.Values.secret.name }}
              key: {{ .root.Values.secret.brokerUrlKey }}
        - name: TASKFRAMEWORK_STORE__URL
          valueFrom:
            secretKeyRef:
              name: {{ .root.Values.secret.name }}
              key: {{ .root.Values.secret.storeUrlKey }}
        {{- $common := dict "app" (dict "modules" .root.Values.modules) "shutdown" (dict "await_termination_timeout" (printf "%vs" .root.Values.stopSeconds)) }}
        {{- include "taskframework.settings" (mergeOverwrite (deepCopy .root.Values.settings) $common .own) | trim | nindent 8 }}
      ports:
        - name: http
          containerPort: {{ .port }}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- if .pause }}
      lifecycle:
        # Until it is out of every list of addresses, it still answers.
        preStop:
          exec:
            command: [sleep, {{ .pause | quote }}]
      {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: tmp
      emptyDir: {}
{{- end }}
