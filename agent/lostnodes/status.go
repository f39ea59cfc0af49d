package lostnodes

import (
	"fmt"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/text"
)

// Checks returns the line of `ironvip status`: none if no node is lost. A node that drains was taken
// away on purpose.
func (f *Follower) Checks(now time.Time) []v1.Check {
	var first *Node
	missed := 0
	nodes := f.Nodes()
	for i := range nodes {
		if f.o.Draining(nodes[i].Name) {
			continue
		}
		if missed++; first == nil || nodes[i].Since.After(first.Since) {
			first = &nodes[i] // the newest loss
		}
	}
	if first == nil {
		return nil
	}
	c := v1.Check{Name: "nodes", Level: v1.LevelWarn, Message: fmt.Sprintf("%s is lost: silent for %s", first.Name, max(now.Sub(first.Since), 0).Round(time.Second)),
		Hint: "check that host; if it does not return: ironvip node forget " + first.Name}
	if f.o.Roster == nil {
		c.Hint = "check that host and its announcer; if it does not return, remove it from announce.peers"
	}
	if vips := first.Announced(3); vips != "" {
		c.Message += ", announced " + vips
	}
	if missed > 1 {
		c.Message += fmt.Sprintf("; %s more", text.Plural(missed-1, "node"))
	}
	return []v1.Check{c}
}

// Metrics are the metrics of nodes.
var Metrics = metric.NewGroup("Nodes", "")

var familyLost = Metrics.Gauge("nodes_lost", "Nodes that were present and are silent.")

// Collect is the collector of the metric of lost nodes.
func (f *Follower) Collect(w *metric.Writer) { w.Add(familyLost, float64(f.rows.Len())) }
