{{/* The name of all objects. */}}
{{- define "knapcache.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pod. They never change. */}}
{{- define "knapcache.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "knapcache.labels" -}}
{{ include "knapcache.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Host headers that the proxy accepts: the names of the service, localhost for port-forward, and those of the values. */}}
{{- define "knapcache.hosts" -}}
{{- $service := include "knapcache.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $own := list "localhost" "127.0.0.1" $service (printf "%s.%s" $service $namespace) (printf "%s.%s.svc" $service $namespace) (printf "%s.%s.svc.cluster.local" $service $namespace) -}}
{{- join ", " (concat $own .Values.allowedHosts) -}}
{{- end -}}

{{/* Stop with a message if values contradict each other. */}}
{{- define "knapcache.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.store.url) -}}
{{- fail "replicas above 1 needs store.url: without a shared store, each pod would have a cache of its own" -}}
{{- end -}}
{{- if and .Values.store.url (not .Values.store.existingSecret) -}}
{{- fail "store.url needs store.existingSecret: all pods must have the same secret, in its entry `secret`" -}}
{{- end -}}
{{- if and .Values.store.url (contains "@" .Values.store.url) -}}
{{- fail "store.url must not have a user and a password: put them into store.existingSecret" -}}
{{- end -}}
{{- end -}}
