package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestPlanShowsPoolsAndKeys(t *testing.T) {
	pool := func(name, cidr string, change ...func(*configs.Pool)) configs.Pool {
		p := configs.Pool{Name: name, CIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}, AutoAssign: true}
		for _, c := range change {
			c(&p)
		}
		return p
	}
	excluding := func(p *configs.Pool) { p.Exclude = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")} }
	config := func(change ...func(*configs.Config)) *configs.Config {
		c := configs.Default()
		c.Pools = []configs.Pool{pool("a", "192.0.2.0/24"), pool("b", "198.51.100.0/24")}
		for _, f := range change {
			f(c)
		}
		return c
	}
	for _, tc := range []struct {
		name string
		new  *configs.Config
		want []string
	}{{
		name: "nothing",
		new:  config(),
	}, {
		name: "a pool that changes, one that goes and one that comes",
		new: config(func(c *configs.Config) {
			c.Pools = []configs.Pool{pool("a", "192.0.2.0/24", excluding), pool("c", "203.0.113.0/24")}
		}),
		want: []string{
			"change pool a: exclude none -> 192.0.2.0/28 (services keep the addresses they hold)",
			"add pool c: 203.0.113.0/24 ()",
			"remove pool b: 198.51.100.0/24 (services keep the addresses they hold)",
		},
	}, {
		name: "another order of the pools",
		new:  config(func(c *configs.Config) { c.Pools[0], c.Pools[1] = c.Pools[1], c.Pools[0] }),
		want: []string{"change config pool: differs from the value in effect (the pools are used in another order)"},
	}, {
		name: "keys that are live and that wait",
		new: config(func(c *configs.Config) {
			c.Log.Level = "debug"
			c.Dataplane.ResyncInterval = spec.Duration(1e9)
		}),
		want: []string{
			"change config log.level: differs from the value in effect ()",
			"change config dataplane.resync_interval: differs from the value in effect (takes effect when the agent is restarted)",
		},
	}, {
		name: "another store",
		new:  config(func(c *configs.Config) { c.IPAM.Store, c.Consul.Prefix = configs.StoreConsul, "edge" }),
		want: []string{
			"change config consul.prefix: differs from the value in effect (takes effect when the agent is restarted, which it refuses until the leases are moved: ironvip snapshot save, restore)",
			"change config ipam.store: differs from the value in effect (takes effect when the agent is restarted, which it refuses until the leases are moved: ironvip snapshot save, restore)",
		},
	}, {
		name: "how Consul would be reached",
		new:  config(func(c *configs.Config) { c.Consul.Prefix = "edge" }),
		want: []string{"change config consul.prefix: differs from the value in effect (takes effect when the agent is restarted)"},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, c := range newLiveConfig(config(), nil).changes(tc.new, "") {
				got = append(got, fmt.Sprintf("%s %s %s: %s (%s)", c.Action, c.Kind, c.Name, c.Detail, c.Impact))
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// After a reload, a key that waits for a restart is still in the plan, and the status names the plan. A mode waits until the
// dataplane that it names, or allows, serves.
func TestPlanShowsWhatWaitsForARestart(t *testing.T) {
	reloaded := configs.Default()
	reloaded.Dataplane.Mode = configs.ModeNFT
	l, running := newLiveConfig(configs.Default(), nil), configs.ModeProxy
	waits := func(when string, want bool) {
		t.Helper()
		if changes := l.changes(l.get(), running); (len(changes) > 0) != want {
			t.Errorf("%s: changes %+v", when, changes)
		} else if want && (changes[0].Name != "dataplane.mode" || changes[0].Impact != "takes effect when the agent is restarted, or with ironvip dataplane switch nft") {
			t.Errorf("%s: changes %+v", when, changes)
		}
		c := l.check(running)
		shown := c.Next == "ironvip config plan" && c.Message == "restart needed for dataplane.mode"
		expect.Equal(t, shown, want, "%s: check %+v", when, c)
	}
	waits("nothing differs", false)
	l.set(reloaded, nil)
	waits("reloaded", true)
	running = configs.ModeNFT
	waits("switched", false)
	running = configs.ModeIPVS
	l.set(configs.Default(), nil)
	waits("auto", false)
}
