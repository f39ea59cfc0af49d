package agent

import (
	"fmt"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/proxy"
)

// capacityChecks returns the line of the status on the proxy's capacity, if it is short. Files is
// the process's limit of descriptors.
func capacityChecks(c proxy.Capacity, files uint64) []v1.Check {
	if !c.Short() {
		return nil
	}
	check := v1.Check{Name: "capacity", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s, %d of them for service %s", c, c.LargestFiles, c.Largest),
		Hint: fmt.Sprintf("see ironvip service explain %s; shorten its idle_timeout and half_close_timeout, or raise LimitNOFILE (now %d)",
			c.Largest, files),
	}
	switch {
	case c.Exhausted:
		check.Level = v1.LevelFail
		check.Message = fmt.Sprintf("clients of any service are refused (%d since the start): %s", c.Refused, check.Message)
	case c.Reserved:
		check.Message = fmt.Sprintf("clients of the largest services are refused, to keep a reserve for others (%d since the start): %s", c.Refused, check.Message)
	}
	return []v1.Check{check}
}
