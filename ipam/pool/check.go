package pool

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// CodeNotice is the code of a pool's problem that doesn't prevent allocation.
const CodeNotice = "notice"

// IsWarning reports whether the pools are usable despite a problem of Check or an alarm.
func IsWarning(p vip.Problem) bool { return p.Code == CodeNotice }

// Check returns all problems of pools: of each alone, with each other, and with the ranges of
// pods. An allocator must not run with them unless IsWarning is true for each. A field is written
// "pool[0].cidrs"; the message has the prefix, which can be a part of a range of the list.
func Check(pools []ipam.Pool, podCIDRs []netip.Prefix) []vip.Problem {
	var out []vip.Problem
	add := func(code, field, hint, format string, args ...any) {
		out = append(out, vip.Problem{Code: code, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)})
	}
	names := make(map[string]int)
	var seen []placedRange // ranges of this and earlier pools
	for i, p := range pools {
		field, before := fmt.Sprintf("pool[%d]", i), len(out)
		if err := vip.CheckLabel(p.Name); err != nil {
			add(vip.CodeInvalid, field+".name", "a pool's name is a DNS label such as public-v4", "pool name: %s", err)
		} else if j, twice := names[p.Name]; twice {
			add(vip.CodeInvalid, field+".name", "give one of them another name", "pool %q is defined twice: pool[%d] and pool[%d]", p.Name, j, i)
		} else {
			names[p.Name] = i
		}
		if len(p.CIDRs) == 0 {
			add(vip.CodeInvalid, field+".cidrs", `add a range: cidrs = ["192.0.2.0/24"]`, "pool %q has no ranges", p.Name)
		}
		for _, c := range p.CIDRs {
			at := field + ".cidrs"
			if why, hint := badRange(c); why != "" {
				add(vip.CodeInvalid, at, hint, "pool %q %s %s", p.Name, c, why)
				continue
			}
			for _, other := range seen {
				if !c.Overlaps(other.prefix) {
					continue
				}
				with := fmt.Sprintf("pool %q %s", other.pool, other.prefix)
				if other.index == i {
					with = other.prefix.String() + " of the same pool"
				}
				add(vip.CodeOverlap, at, "an address may be in one range only: change one of the two", "pool %q %s overlaps %s", p.Name, c, with)
			}
			for _, pod := range podCIDRs {
				if pod.IsValid() && c.Overlaps(pod) {
					add(vip.CodeOverlap, at, "pods have these addresses: change the pool, or pod_cidrs if it is wrong",
						"pool %q %s overlaps pod range %s", p.Name, c, pod)
				}
			}
			seen = append(seen, placedRange{p.Name, i, c})
		}
		for _, e := range p.Exclude {
			at := field + ".exclude"
			if !e.IsValid() || e.Masked() != e {
				why, hint := badRange(e)
				add(vip.CodeInvalid, at, hint, "pool %q excludes %s, which %s", p.Name, e, why)
			} else if notice, useless := uselessExclude(&p, e); useless {
				notice.Field = at
				out = append(out, notice)
			}
		}
		if !slices.ContainsFunc(out[before:], func(p vip.Problem) bool { return !IsWarning(p) }) {
			for _, notice := range New(p, NewGuard(nil, nil, hostnet.Snapshot{})).nothingToGive() {
				notice.Field = field + ".exclude"
				out = append(out, notice)
			}
		}
	}
	return out
}

// nothingToGive returns a notice for each family of which the pool has ranges but no address to allocate, leased or not.
func (p *Pool) nothingToGive() (out []vip.Problem) {
	for _, f := range p.Families() {
		if r := p.Ranges[f]; len(r.Static)+len(r.Dynamic) == 0 {
			out = append(out, vip.Problem{Code: CodeNotice, Hint: "add a range to the pool's cidrs, or remove an exclude",
				Message: fmt.Sprintf("pool %q has nothing to give: all of its %s addresses are excluded or held out", p.Name, f)})
		}
	}
	return out
}

// Shrunk says that services hold addresses of a pool that no pool has any more.
func Shrunk(name string, addresses uint64) vip.Problem {
	return vip.Problem{Code: CodeNotice, Hint: "add their range to a pool, or delete or move their services",
		Message: fmt.Sprintf("pool %q has shrunk: addresses outside of its ranges, which their services keep: %d", name, addresses)}
}

// uselessExclude returns a notice if an exclude has no effect.
func uselessExclude(p *ipam.Pool, e netip.Prefix) (notice vip.Problem, useless bool) {
	return vip.Problem{
		Code: CodeNotice, Hint: "remove it, or correct it",
		Message: fmt.Sprintf("pool %q excludes %s, which is outside of its ranges", p.Name, e),
	}, !slices.ContainsFunc(p.CIDRs, e.Overlaps)
}

type placedRange struct {
	pool   string
	index  int
	prefix netip.Prefix
}

// unfit are ranges of addresses that no service can have.
var unfit = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), `"this network"`},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/128"), "the unspecified address"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "IPv4 in IPv6"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// badRange says why a prefix can't be a range of a pool.
func badRange(p netip.Prefix) (why, hint string) {
	if !p.IsValid() {
		return "is not a range", `write it as "192.0.2.0/24"`
	}
	if m := p.Masked(); m != p {
		return "has bits set behind its length", fmt.Sprintf("write it as %q, or as %q for the one address", m, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	for _, u := range unfit {
		if p.Overlaps(u.prefix) {
			return "reaches into " + u.prefix.String() + ", which is " + u.what, "choose a range of unicast addresses"
		}
	}
	return "", ""
}
