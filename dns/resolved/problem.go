package resolved

import (
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"
)

// Problem is a reason why systemd-resolved doesn't use the DNS server, and what to do about it.
type Problem struct {
	Message string
	Hint    string // may be empty
}

func (p *Problem) Error() string { return p.Message }

// RuleFile is the polkit rule that `make install` installs.
const RuleFile = "/etc/polkit-1/rules.d/50-ironvip.rules"

const without = `, or set dns.resolver = "none"`

var errBusLost = &Problem{"system bus: the connection ended", ""}

func errNoBus(err error) error {
	return &Problem{fmt.Sprintf("system bus unreachable: %v", err), "start dbus" + without}
}

func errNotRunning() error {
	return &Problem{"systemd-resolved is not running", "run systemctl enable --now systemd-resolved" + without}
}

func errNoLink(name string) error {
	return &Problem{fmt.Sprintf("interface %s does not exist", name),
		"create a service: the dataplane creates the interface with the first VIP; the userspace dataplane needs CAP_NET_ADMIN for it"}
}

func errLinkUnused(name string) error {
	return &Problem{fmt.Sprintf("interface %s has no address or is down, so systemd-resolved ignores it", name),
		"create a service with a VIP; if other addresses of the host are VIPs, add an address to the interface"}
}

func errTooManyDomains(n int) error {
	return &Problem{fmt.Sprintf("%d domains are more than the %d that systemd-resolved accepts", n, MaxDomains),
		"make pools that begin and end at a byte (a nibble in IPv6) of their addresses, or set dns.reverse = false"}
}

// problemOf returns err as a Problem with a hint for the refusals that an operator can end.
func problemOf(err error) *Problem {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	call, ok := errors.AsType[dbus.Error](err)
	if !ok {
		return &Problem{err.Error(), ""}
	}
	switch call.Name {
	case "org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired":
		return &Problem{"systemd-resolved refuses changes by this user: no polkit rule allows them", "install polkit and the rule " + RuleFile + ", as make install does"}
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return problemOf(errNotRunning())
	case "org.freedesktop.DBus.Error.UnknownMethod":
		return &Problem{"systemd-resolved is too old: " + call.Error(), "use systemd 246 or later" + without}
	case "org.freedesktop.resolve1.LinkBusy":
		return &Problem{"the interface is managed by systemd-networkd, which sets its DNS servers", "set Unmanaged=yes for it in a .network file"}
	}
	return &Problem{err.Error(), ""}
}
