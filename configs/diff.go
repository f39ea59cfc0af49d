package configs

import (
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/configs/reference"
)

// isLive reports whether a running agent applies a key on a reload. Pools are one key, and so are quotas and hooks.
func isLive(key string) bool {
	k, _ := reference.Config.Find(key)
	return k.Live || key == "pool" || key == "quota" || key == "hook"
}

// Diff returns the keys in which two configurations differ, sorted: those that a running agent applies
// on a reload, and those that need a restart. Pools, quotas, sources and hooks are one key each.
func Diff(old, new *Config) (live, restart []string) {
	before, after := old.byKey(), new.byKey()
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch {
		case before[key] == after[key]:
		case isLive(key):
			live = append(live, key)
		default:
			restart = append(restart, key)
		}
	}
	return live, restart
}

// byKey returns the values in effect as texts, by their keys. The tables of a list are one key.
func (c *Config) byKey() map[string]string {
	out := map[string]string{}
	for _, v := range c.Values() {
		key, _, _ := strings.Cut(v.Key, "[")
		out[key] += v.Key + " = " + v.Value + "\n"
	}
	return out
}
