// Package firewall finds nftables rules of other programs that drop what VIPs need, such as those of firewalld, ufw and
// Docker, which iptables writes to nftables, too.
//
// Its input is the ruleset of the kernel. It follows the chains with one packet for each question. A condition that depends
// on what it doesn't know, such as a port or an interface, is undecided: such a rule neither accepts nor drops the packet,
// unless it also names its address. Of rules of iptables-legacy it only finds that some drop packets. It changes nothing.
package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Drop is a chain that drops packets.
type Drop struct {
	Family, Table, Chain string // "ip", "filter", "INPUT"
	Forward              bool   // of answers of backends that this host forwards; otherwise of clients' packets to a VIP
	To                   netip.Prefix
	Chains               []string // all chains of the table, which show whose it is
}

// Query is what must pass.
type Query struct {
	Pools   []netip.Prefix
	Forward bool     // this host forwards answers of backends, as with ipvs and nat
	Ours    []string // tables to skip
}

// Find returns the chains that drop what must pass, in the network namespace of the calling thread.
func Find(q Query) ([]Drop, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	var drops []Drop
	for _, base := range all {
		if base.Hooknum == nil || base.Type != nftables.ChainTypeFilter || slices.Contains(q.Ours, base.Table.Name) {
			continue
		}
		forward := *base.Hooknum == *nftables.ChainHookForward
		if forward && !q.Forward || !forward && *base.Hooknum != *nftables.ChainHookInput {
			continue
		}
		for _, pool := range q.Pools {
			if !sees(base.Table.Family, pool.Addr()) {
				continue
			}
			w := walk{conn: conn, table: base.Table, packet: packet{pool: pool, forward: forward}}
			verdict, err := w.chain(base.Name, false)
			if err != nil {
				return drops, fmt.Errorf("read chain %s of table %s: %w", base.Name, base.Table.Name, err)
			}
			if verdict == dropped || verdict == open && base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop {
				drops = append(drops, Drop{Family: families[base.Table.Family], Table: base.Table.Name, Chain: base.Name, Forward: forward,
					To: pool, Chains: chainsOf(all, base.Table)})
				if forward {
					break // the answer has no address that we know
				}
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
