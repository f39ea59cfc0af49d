package cli

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/ipvs"
)

// ipvsRequirements returns what IPVS needs of this host in its role, as doctor's type.
func ipvsRequirements(realServer bool) []doctor.Requirement {
	var out []doctor.Requirement
	for _, f := range ipvs.Check(realServer) {
		out = append(out, doctor.Requirement{Name: f.Name, OK: f.OK, Unknown: f.Unknown, Required: f.Required, Detail: f.Detail, Remedy: f.Remedy})
	}
	return out
}

// ipvsServices separates our IPVS services from others, as doctor's type.
func ipvsServices(device string) (doctor.Services, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := ipvs.Find(ctx, ipvs.Options{Device: device})
	if err != nil {
		return doctor.Services{}, err
	}
	defer found.Close()
	s := doctor.Services{Others: found.Others}
	for _, mine := range found.Services {
		s.Ours = append(s.Ours, mine.Key)
	}
	return s, nil
}
