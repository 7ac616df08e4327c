//go:build tools

package conformance

import (
	// Runs tests beside each other.
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	// What most tests run in their pods.
	_ "k8s.io/kubernetes/test/images/agnhost"
)
