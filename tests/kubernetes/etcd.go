//go:build tools

package main

// Built of the same modules as Kubernetes.
import (
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
