package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/ironvip/ironvip/agent/planes"
	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// Check returns why an agent with these options can't start, or nil. It reads the configuration, the state file and what the
// kernel can do, as a start does, and changes nothing. Another agent may run: it has verified the state file, which it has
// locked. A configuration that is refused is an error, although a start goes on with the last good one.
func Check(o Options) error {
	cfg, problems := configs.Load(o.Config)
	if cfg == nil {
		return configs.Refusal("configuration refused", problems)
	}
	cfg.Node.StateDir = cmp.Or(o.StateDir, cfg.Node.StateDir)
	if err := checkFiles(openfiles.Limit()); err != nil {
		return err
	}
	path := stores.StatePath(cfg)
	if err := store.Check(path); err != nil && !errors.Is(err, store.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state file %s: %w", path, err)
	}
	_, err := planes.Choose(cfg, "")
	return err
}

// checkFiles returns an error if this process may open too few files for an agent: it would lose its VIPs, and not get them
// back.
func checkFiles(limit uint64) error {
	if limit >= openfiles.Least {
		return nil
	}
	return vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf("this process may open %d files, and an agent needs at least %d", limit, openfiles.Least),
		Hint: "LimitNOFILE=1048576 in the unit, or ulimit -n 1048576"}
}
