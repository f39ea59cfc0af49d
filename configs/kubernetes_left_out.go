//go:build nokubernetes

package configs

import "github.com/ironvip/ironvip/sources"

// newKubernetes is nil: this build has no sources of type kubernetes.
var newKubernetes func() sources.Config
