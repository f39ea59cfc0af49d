package stores

import (
	"context"
	"fmt"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
)

// Place says which store it is. The state file records the place that the agent last ran with: an agent
// that starts on another store would find no leases there, and assign a new address to every service.
type Place struct {
	Kind       string `json:"kind"`
	Prefix     string `json:"prefix,omitempty"`
	Datacenter string `json:"datacenter,omitempty"`
}

// PlaceOf returns the store that a configuration names.
func PlaceOf(cfg *configs.Config) Place {
	p := Place{Kind: cfg.IPAM.Store}
	if p.Kind != configs.StoreBolt {
		p.Prefix = cfg.FleetPrefix()
	}
	if p.Kind == configs.StoreConsul {
		p.Datacenter = cfg.Consul.Datacenter
	}
	return p
}

// String returns "bolt", or "consul" or "etcd" with its prefix and datacenter.
func (p Place) String() string {
	switch {
	case p.Kind == configs.StoreBolt:
		return p.Kind
	case p.Datacenter != "":
		return fmt.Sprintf("%s (prefix %q, datacenter %q)", p.Kind, p.Prefix, p.Datacenter)
	}
	return fmt.Sprintf("%s (prefix %q)", p.Kind, p.Prefix)
}

// noteOf returns the bucket of the state file with the last Place.
func noteOf(db *store.DB) *store.Bucket[Place] { return store.NewBucket[Place](db, "store") }

const lastKey = "last"

// Former returns the store in which this host last ran, if the configuration names another one and there
// is something to lose.
func Former(cfg *configs.Config, db *store.DB) (former Place, moved bool, err error) {
	former, known, err := noteOf(db).Get(lastKey)
	if err == nil && (!known || former.Kind == configs.StoreBolt) {
		local, err := localContents(context.Background(), db)
		if err != nil || local.Empty() {
			return Place{}, false, err
		}
		former = Place{Kind: configs.StoreBolt}
	}
	return former, err == nil && former != PlaceOf(cfg), err
}

// checkPlace refuses to start on another store than the last one, unless a snapshot was restored or
// there is nothing to lose. The state file is lost if it is new although an agent ran with this state directory
// before: every start records its store in the file, and keeps a copy of the configuration beside it.
func checkPlace(cfg *configs.Config, db *store.DB) (lost bool, err error) {
	now := PlaceOf(cfg)
	last, known, err := noteOf(db).Get(lastKey)
	if err != nil || known && last == now {
		return false, err
	}
	former, moved, err := Former(cfg, db)
	if err != nil {
		return false, err
	}
	if moved {
		return false, fmt.Errorf("ironvip.toml names the store %s, and what this host's services hold is in the store %s: they would all get new addresses\n"+
			"hint: to keep the addresses, set ipam.store back, `ironvip snapshot save vips.json`, set it again, `ironvip snapshot restore vips.json`; "+
			"to take those of the new store, `ironvip snapshot restore --none`", now, former)
	}
	return !known && cfg.RanBefore(), Note(db, now)
}

// Note records the store that this host runs with.
func Note(db *store.DB, p Place) error {
	if err := noteOf(db).Put(lastKey, p); err != nil {
		return fmt.Errorf("note the store: %w", err)
	}
	return nil
}
