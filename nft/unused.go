package nft

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
)

// place is a class at an origin, where it has a chain.
type place struct {
	class  class
	origin origin
}

// unused returns the chains of classes that no service of their origin has.
func (c *content) unused() (all []place) {
	used := map[place]bool{}
	for _, s := range c.services {
		used[place{s.class, originOf(s.key)}] = true
	}
	for o := range origins {
		for k := range c.chains[o] {
			if p := (place{k, o}); !used[p] {
				all = append(all, p)
			}
		}
	}
	return all
}

// dropClasses deletes the chains of unused classes, with the verdicts that lead to them, and those for SynProxy. A service that takes such a class
// afterwards adds it again. A failure leaves chains that no packet passes.
func (t *Target) dropClasses(ctx context.Context) {
	all := t.content.unused()
	unguarded := t.content.synProxy
	for _, s := range t.content.services {
		unguarded = unguarded && !s.class.synProxy
	}
	if t.broken || len(all) == 0 && !unguarded {
		return
	}
	err := t.fw.ApplyWith(ctx, nil, func(x *nftwire.Transaction) error {
		for _, p := range all {
			list := x.BeginElements(unix.NFT_MSG_DELSETELEM, 0, t.opt.table(), setID{kindClasses, 0, p.origin, 0}.String())
			x.AddElement(&nftwire.Element{Key: big(t.content.classes[p.class] << shiftClass)})
			x.EndElements(list)
			x.DeleteChain(t.opt.table(), p.class.chain(p.origin))
		}
		if unguarded {
			t.layout.DropSynProxy(x)
		}
		return nil
	})
	if err != nil {
		t.opt.Log.Warn("chains that no service uses remain", "err", err)
		return
	}
	t.content.synProxy = t.content.synProxy && !unguarded
	for _, p := range all {
		delete(t.content.chains[p.origin], p.class)
	}
	maps.DeleteFunc(t.content.classes, func(k class, _ uint32) bool {
		return !slices.ContainsFunc(t.content.chains[:], func(has map[class]bool) bool { return has[k] })
	})
}

// nextClass returns a number that no class has. There must be one. A number that was released is used as late as possible.
func (c *content) nextClass() uint32 {
	used := map[uint32]bool{}
	for _, n := range c.classes {
		used[n] = true
	}
	c.lastClass = c.lastClass%maxClass + 1
	for used[c.lastClass] {
		c.lastClass = c.lastClass%maxClass + 1
	}
	return c.lastClass
}
