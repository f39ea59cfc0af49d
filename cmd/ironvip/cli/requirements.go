package cli

import (
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/ipvs"
)

// ipvsRequirements is what IPVS needs of this host, in doctor's terms.
func ipvsRequirements() []doctor.Requirement {
	var out []doctor.Requirement
	for _, f := range ipvs.Check() {
		out = append(out, doctor.Requirement{Name: f.Name, OK: f.OK, Required: f.Required, Detail: f.Detail, Remedy: f.Remedy})
	}
	return out
}
