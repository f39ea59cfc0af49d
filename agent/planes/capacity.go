package planes

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/proxy/remote"
)

// proxyChecks returns the lines of the status on clients that the proxy refuses.
func proxyChecks(c *remote.Client) []v1.Check {
	r := c.Report()
	panics, now := r.Panics()
	return slices.Concat(capacityChecks(r.Capacity, r.Limit), limitChecks(r.Limited()), panicChecks(panics, now))
}

// panicChecks returns the line of the status on clients that a fault of this program refused.
func panicChecks(clients uint64, now bool) []v1.Check {
	if !now {
		return nil
	}
	return []v1.Check{{Name: "panics", Level: v1.LevelWarn,
		Message: "a fault of ironvip ended connections of clients in the last minute: " + text.Plural(int(clients), "connection") + " since the start",
		Hint:    "report it with the stack in the log; other clients are not affected"}}
}

// limitChecks returns the line of the status on services that have reached their own limits. It
// warns if they refuse clients.
func limitChecks(limited []proxy.Limited) []v1.Check {
	if len(limited) == 0 {
		return nil
	}
	var full, refused []string
	first := limited[0].Service
	for _, l := range limited {
		if l.Full {
			full = append(full, l.Service.String())
		}
		if len(l.Reasons) > 0 {
			if refused == nil {
				first = l.Service
			}
			refused = append(refused, fmt.Sprintf("%s for %s (%d since the start)", l.Service, strings.Join(l.Reasons, " and "), l.Refused))
		}
	}
	check := v1.Check{Name: "limits", Level: v1.LevelOK,
		Hint: fmt.Sprintf("see ironvip service explain %s; add backends, or raise max_connections or max_queue", first)}
	var parts []string
	if len(refused) > 0 {
		check.Level = v1.LevelWarn
		parts = append(parts, text.Plural(len(refused), "service")+" refused clients in the last minute: "+text.First(3, refused, ", "))
	}
	if len(full) > 0 {
		parts = append(parts, text.Plural(len(full), "service")+" full: "+text.First(3, full, ", "))
	}
	check.Message = strings.Join(parts, "; ")
	return []v1.Check{check}
}

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
