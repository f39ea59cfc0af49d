package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/text"
)

// DNS is what the configuration has about names.
type DNS struct {
	Domain   string
	Resolved resolved.Settings // what the agent sets in systemd-resolved, if it is on
}

// resolver checks systemd-resolved, if the agent configures it, and looks up a name as other programs
// do.
func resolver(h Host, d DNS) []Finding {
	if h.Resolved == nil || !d.Resolved.On {
		return nil
	}
	var out []Finding
	if p := h.Resolved(d.Resolved).Problem; p == nil {
		out = append(out, Finding{OK, "resolved", fmt.Sprintf("systemd-resolved looks up %s at the agent, through interface %s",
			text.First(3, d.Resolved.Domains, ", "), d.Resolved.Link), ""})
	} else {
		out = append(out, Finding{Warn, "resolved", p.Message, p.Hint})
		if _, err := fs.Stat(h.Files, strings.TrimPrefix(resolved.RuleFile, "/")); errors.Is(err, fs.ErrNotExist) {
			out = append(out, Finding{Warn, "resolved", "polkit rule " + resolved.RuleFile + " does not exist: only an agent that runs as root can configure systemd-resolved",
				"install it from configs/polkit, as make install does"})
		}
	}
	name := "dns-version." + d.Domain // of the TXT record that every zone has
	if err := h.Lookup(name); err != nil {
		return append(out, Finding{Warn, "lookup", fmt.Sprintf("name %s not found by the system's resolver: %v", name, err),
			"link /etc/resolv.conf to /run/systemd/resolve/stub-resolv.conf, and see the other findings on DNS"})
	}
	return append(out, Finding{OK, "lookup", "the system's resolver finds " + name, ""})
}
