// Package firewall finds nftables rules of other programs that drop what VIPs need, such as those of firewalld, ufw and
// Docker, which iptables writes to nftables, too.
//
// Its input is the ruleset of the kernel. It follows the chains with one packet for each question. A condition that depends
// on what it doesn't know, such as a port or an interface, is undecided: such a rule neither accepts nor drops the packet,
// unless it also names its address. It changes nothing.
package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Drop is a chain that drops packets.
type Drop struct {
	Family, Table, Chain string // "ip", "filter", "INPUT"
	Path                 Path
	To                   netip.Prefix
	Chains               []string // all chains of the table, which show whose it is
}

// Path is which packets a dataplane gets, or forwards.
type Path int

// Paths, in the order in which a client's connection has them.
const (
	ToVIP     Path = iota // a client's first packet, to a VIP of this host: with ipvs and the userspace proxy
	ToBackend             // a client's first packet, which nft has sent on to a backend
	Answers               // of backends, which this host forwards: with ipvs and nat, and with nft
)

// Query is what must pass.
type Query struct {
	Pools []netip.Prefix
	Paths []Path
	Ours  []string // tables to skip
}

// Find returns the chains that drop what must pass, in the network namespace of the calling thread. It goes on after a
// chain that can't be read: the error names all of them. If none could be listed, the result is nil.
func Find(q Query) ([]Drop, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChains()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) { // this kernel has no nf_tables, so nothing has rules
		return []Drop{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	drops := []Drop{}
	var unread []error
	for _, base := range all {
		if base.Hooknum == nil || base.Type != nftables.ChainTypeFilter || slices.Contains(q.Ours, base.Table.Name) {
			continue
		}
		for _, path := range q.Paths {
			if *base.Hooknum != *path.hook() {
				continue
			}
			found, err := q.dropsOf(conn, base, path)
			if err != nil {
				unread = append(unread, fmt.Errorf("read chain %s of table %s: %w", base.Name, base.Table.Name, err))
				break
			}
			for i := range found {
				found[i].Chains = chainsOf(all, base.Table)
			}
			drops = append(drops, found...)
			if len(found) > 0 {
				break // one reason is enough, and the remedy for it lets the other packets of the hook pass, too
			}
		}
	}
	return drops, errors.Join(unread...)
}

// hook returns where packets of the path pass.
func (p Path) hook() *nftables.ChainHook {
	if p == ToVIP {
		return nftables.ChainHookInput
	}
	return nftables.ChainHookForward
}

// dropsOf returns how a chain drops packets of a path.
func (q Query) dropsOf(conn *nftables.Conn, base *nftables.Chain, path Path) (drops []Drop, err error) {
	for _, pool := range q.Pools {
		if !sees(base.Table.Family, pool.Addr()) {
			continue
		}
		w := walk{conn: conn, table: base.Table, packet: packet{pool: pool, path: path, dnat: slices.Contains(q.Paths, ToBackend)}}
		verdict, err := w.chain(base.Name, false)
		if passes := verdict == accepted || verdict == open && base.Policy != nil && *base.Policy == nftables.ChainPolicyAccept; err == nil && path == ToVIP && passes {
			w.packet.later = true
			verdict, err = w.chain(base.Name, false)
		}
		if err != nil {
			return drops, err
		}
		if verdict == dropped || verdict == open && base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop {
			drops = append(drops, Drop{Family: families[base.Table.Family], Table: base.Table.Name, Chain: base.Name, Path: path, To: pool})
			if path != ToVIP {
				break // neither a backend nor its clients have an address that we know
			}
		}
	}
	return drops, nil
}

var families = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}

func sees(f nftables.TableFamily, a netip.Addr) bool {
	return f == nftables.TableFamilyINet || f == nftables.TableFamilyIPv4 && a.Is4() || f == nftables.TableFamilyIPv6 && a.Is6()
}

func chainsOf(all []*nftables.Chain, t *nftables.Table) (names []string) {
	for _, c := range all {
		if c.Table.Name == t.Name && c.Table.Family == t.Family {
			names = append(names, c.Name)
		}
	}
	return names
}

// outcome is what a chain decides.
type outcome int

const (
	open outcome = iota // nothing
	accepted
	dropped
)

// deepest is the kernel's limit of nested chains.
const deepest = 16

// walk follows one packet through a table.
type walk struct {
	conn   *nftables.Conn
	table  *nftables.Table
	packet packet
	depth  int
}

// chain follows the packet through a chain. Undecided means that the packet may not come here.
func (w *walk) chain(name string, undecided bool) (outcome, error) {
	if w.depth++; w.depth > deepest {
		return open, nil
	}
	defer func() { w.depth-- }()
	rules, err := w.conn.GetRules(w.table, &nftables.Chain{Name: name, Table: w.table})
	if err != nil {
		return open, err
	}
	for _, r := range rules {
		m := match{walk: w, regs: map[uint32]value{}}
		verdict, to, err := m.rule(r.Exprs)
		if err != nil {
			return open, err
		}
		maybe := (undecided || m.result == maybe) && !m.addressed
		if m.result == no {
			continue
		}
		switch verdict {
		case expr.VerdictAccept:
			if !maybe {
				return accepted, nil
			}
		case expr.VerdictDrop:
			if !maybe && !undecided && m.result == yes {
				return dropped, nil
			}
		case expr.VerdictJump, expr.VerdictGoto:
			out, err := w.chain(to, maybe)
			if err != nil || out == accepted || out == dropped && !maybe {
				return out, err
			}
			if verdict == expr.VerdictGoto && !maybe {
				return open, nil
			}
		case expr.VerdictReturn:
			if !maybe {
				return open, nil
			}
		}
	}
	return open, nil
}
