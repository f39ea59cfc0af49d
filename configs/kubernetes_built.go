//go:build !nokubernetes

package configs

import (
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/kubernetes"
)

var newKubernetes = func() sources.Config { return kubernetes.NewConfig() }
