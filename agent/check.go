package agent

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// Check returns why an agent with these options can't start, or nil. It reads the configuration, the state file and what the
// kernel can do, as a start does, and changes nothing. Another agent may run: it has verified the state file, which it has
// locked. A configuration that is refused is an error, although a start goes on with the last good one.
func Check(o Options) error {
	cfg, problems := configs.Load(o.Config)
	if cfg == nil {
		return configs.Refusal("configuration refused", problems)
	}
	if o.StateDir != "" {
		cfg.Node.StateDir = o.StateDir
	}
	if err := checkFiles(openfiles.Limit()); err != nil {
		return err
	}
	path := stores.StatePath(cfg)
	if err := store.Check(path); err != nil && !errors.Is(err, store.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state file %s: %w", path, err)
	}
	_, err := chooseMode(cfg.Dataplane.Mode, cfg.Dataplane.Role, "", func(mode string) []host.Finding { return checkMode(mode, cfg.Dataplane.Role) })
	return err
}
