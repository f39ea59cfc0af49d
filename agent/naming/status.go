package naming

import (
	"context"
	"fmt"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/dns/server"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// checkName is the name of the line in `ironvip status`.
const checkName = "dns"

// Checks returns the lines of `ironvip status`: none while names are not answered.
func (n *Naming) Checks() []v1.Check {
	cfg := n.Config()
	if !cfg.DNS.On() {
		return nil
	}
	c := v1.Check{Name: checkName, Level: v1.LevelOK}
	warn := func(p v1.Problem) {
		c.Level = v1.LevelWarn
		c.Problems = append(c.Problems, p)
	}
	for _, p := range n.server.Problems() {
		warn(v1.Problem{Code: p.Code, Message: p.Message, Hint: p.Hint})
	}
	if p := n.resolver.State().Problem; p != nil {
		warn(v1.Problem{Message: p.Message, Hint: p.Hint})
	}
	up := 0
	listeners := n.server.Listeners()
	for _, l := range listeners {
		if l.Up {
			up++
		}
	}
	c.Message = fmt.Sprintf("names of %s in %s", text.Plural(n.Services.Len(), "service"), cfg.DNS.Domain)
	if conflicts := n.Stage.Conflicts().Len(); conflicts > 0 {
		c.Message += fmt.Sprintf(" (%s)", text.Plural(conflicts, "conflict"))
	}
	if up < len(listeners) {
		c.Message += fmt.Sprintf(" at %d of %d addresses", up, len(listeners))
	} else {
		c.Message += " at " + text.Join(listeners, ", ", func(l server.Listener) string { return l.Addr.String() })
	}
	if !table.IsClosed(n.Stage.Synced()) {
		c.Message += "; unknown names get SERVFAIL until every source has been read"
	}
	if len(c.Problems) > 0 {
		c.Hint, c.InMessage = c.Problems[0].Hint, 1
		if c.Message = c.Problems[0].Message; len(c.Problems) > 1 {
			c.Message += fmt.Sprintf(", and %d more", len(c.Problems)-1)
		}
	}
	return []v1.Check{c}
}

// Kinds of events.
const (
	eventTaken = "dns_name_taken"
	eventFreed = "dns_name_freed"
)

// followConflicts turns changes of conflicts into events.
func (n *Naming) followConflicts(ctx context.Context) error {
	feed := n.Stage.Conflicts().Watch()
	defer feed.Close()
	winners := map[zone.ConflictKey]vip.ServiceKey{}
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		var events []event.Event
		for i := range batch {
			c := &batch[i].Value
			former, was := winners[c.ConflictKey]
			switch {
			case batch[i].Deleted && was:
				delete(winners, c.ConflictKey)
				events = append(events, event.Event{Kind: eventFreed, Service: c.Service.String(), Object: c.Name, Message: fmt.Sprintf("service %s no longer contests the DNS name %s", c.Service, c.Name)})
			case !batch[i].Deleted && (!was || former != c.Winner):
				winners[c.ConflictKey] = c.Winner
				events = append(events, event.Event{Kind: eventTaken, Service: c.Service.String(), Object: c.Name, Message: taken(c)})
			}
		}
		n.Events.AddMany(events, func(n int) string { return text.Plural(n, "more conflict") + " of DNS names changed" })
	}
}

func taken(c *zone.Conflict) string {
	switch {
	case c.Undecided && c.Winner == (vip.ServiceKey{}):
		return fmt.Sprintf("service %s doesn't have the DNS name %s yet: a service that had it before the restart can come", c.Service, c.Name)
	case c.Undecided:
		return fmt.Sprintf("service %s doesn't have the DNS name %s yet: service %s had it before the restart", c.Service, c.Name, c.Winner)
	case c.Winner == (vip.ServiceKey{}):
		return fmt.Sprintf("service %s can't have the DNS name %s: ironvip needs it itself", c.Service, c.Name)
	}
	return fmt.Sprintf("service %s can't have the DNS name %s: service %s has it, with the older lease", c.Service, c.Name, c.Winner)
}
