//go:build tools

package adapter

import _ "sigs.k8s.io/prometheus-adapter/cmd/adapter"
