//go:build nokubernetes

package agent

import (
	"fmt"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip"
)

// newKubernetes is out of reach: configs refuses such sources in this build.
func (a *agent) newKubernetes(s *configs.Source) error {
	return fmt.Errorf("source %q: this build has no sources of type %s", s.Name, s.Type)
}

// CheckFiles looks into the files that a configuration names, and says which
// can't be used.
func CheckFiles(cfg *configs.Config) []vip.Problem { return cfg.CheckFiles() }
