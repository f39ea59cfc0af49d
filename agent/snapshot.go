package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// StoreRequest names a store to read or write without an agent.
type StoreRequest struct {
	Config   string // a file, or a directory that holds ironvip.toml
	StateDir string // "": node.state_dir of the configuration
	Version  string // of this binary
}

// RestoreRequest describes a restore or, with DryRun, a comparison.
type RestoreRequest struct {
	StoreRequest
	Data          []byte // a snapshot; nil with None
	File          string // its name in messages
	DryRun        bool   // change nothing
	SkipConflicts bool   // restore the rest
	None          bool   // restore nothing, and allow the agent to start on the store as it is
}

// RestoreResult is what a restore wrote, or would write.
type RestoreResult struct {
	Store    string `json:"store"`    // "bolt" or "consul"
	Restored bool   `json:"restored"` // false for a dry run, and if conflicts prevented the restore
	Replaced int    `json:"replaced"` // outdated values of the store that were removed
	snapshot.Result
}

// snapshot returns the contents of the running agent's store as a document.
func (a *agent) snapshot(ctx context.Context) (snapshot.Document, error) {
	c, err := a.stores.contents(ctx)
	if err != nil {
		return snapshot.Document{}, err
	}
	return documentOf(a.config.get(), c, a.version), nil
}

func documentOf(cfg *configs.Config, c snapshot.Contents, version string) snapshot.Document {
	d := snapshot.NewDocument(c)
	d.Node, d.Store, d.Taken, d.Version = cfg.Node.Name, cfg.IPAM.Store, time.Now().UTC(), version
	return d
}

// idle is the open state file and store of a host with a stopped agent.
type idle struct {
	cfg *configs.Config
	db  *store.DB
	*stores
}

// openIdleState opens the state file of a stopped agent. While it is open, no agent of this host
// can start.
func openIdleState(req StoreRequest) (*configs.Config, *store.DB, error) {
	cfg, problems := configs.Load(req.Config)
	if cfg == nil {
		return nil, nil, problemsError("the configuration, which names the store, can't be used", problems)
	}
	if req.StateDir != "" {
		cfg.Node.StateDir = req.StateDir
	}
	db, err := openState(cfg)
	switch {
	case errors.Is(err, store.ErrLocked):
		return nil, nil, &OfflineError{fmt.Errorf("an agent runs with the state directory %s", cfg.Node.StateDir), CauseRunning,
			"stop it first: systemctl stop ironvip; the kernel goes on forwarding"}
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, &OfflineError{err, CausePermission, "run this as root, or as the user ironvip"}
	}
	return cfg, db, err
}

// openIdle opens the store that a configuration names. The caller closes it.
func openIdle(ctx context.Context, req StoreRequest) (*idle, error) {
	cfg, db, err := openIdleState(req)
	if err != nil {
		return nil, err
	}
	i := &idle{cfg: cfg, db: db}
	clock := table.NewClock(time.Now())
	if i.stores, err = openStores(cfg, db, storeOptions{clock: clock, log: slog.New(slog.DiscardHandler)}); err != nil {
		db.Close()
		return nil, err
	}
	if err := i.inTouch(ctx); err != nil {
		_ = i.close()
		return nil, &OfflineError{fmt.Errorf("the store %s: %w", storeOf(cfg), err), CauseOther,
			"is Consul at " + cfg.Consul.Address + " there, and does the token allow it? consul members; ironvip config validate"}
	}
	return i, nil
}

func (i *idle) close() error { return errors.Join(i.stores.close(), i.db.Close()) }

// Save writes a snapshot of a stopped agent's store. Its error may be an OfflineError.
func Save(ctx context.Context, req StoreRequest, to io.Writer) (err error) {
	i, err := openIdle(ctx, req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	if former, err := storeOfLastRun(i.db); err != nil {
		return err
	} else if former != (lastStore{}) && former != storeOf(i.cfg) {
		return fmt.Errorf("%s names the store %s, but this host's leases are in the store %s\n"+
			"hint: set ipam.store back to save it", i.cfg.Path, storeOf(i.cfg), former)
	}
	c, err := i.contents(ctx)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(documentOf(i.cfg, c, req.Version), "", " ")
	if err != nil {
		return err
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// maxProblems is the maximum number of displayed mistakes of a file.
const maxProblems = 20

// Restore writes a snapshot into the store that the configuration names, while its agent
// is stopped. Its error may be an OfflineError.
func Restore(ctx context.Context, req RestoreRequest) (result RestoreResult, err error) {
	result.Conflicts = []snapshot.Conflict{}
	var in snapshot.Contents
	if !req.None {
		read, problems := snapshot.Read(req.Data)
		for i := range problems {
			problems[i].Place = req.File
		}
		if more := len(problems) - maxProblems; more > 0 {
			problems = append(problems[:maxProblems], vip.Problem{Place: req.File, Message: fmt.Sprintf("%d more mistakes", more)})
		}
		if len(problems) > 0 {
			return result, problemsError("snapshot invalid: nothing was restored", problems)
		}
		in = read
	}
	i, err := openIdle(ctx, req.StoreRequest)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	result.Store = i.cfg.IPAM.Store
	if req.None {
		return result, noteStore(i.db, storeOf(i.cfg))
	}
	present, err := i.contents(ctx)
	if err != nil {
		return result, err
	}
	// If the host last ran on another store, its own store holds an earlier state, which no service
	// uses any more.
	former, err := storeOfLastRun(i.db)
	if err != nil {
		return result, err
	}
	outdated := snapshot.Contents{}
	if i.tree == nil && former != (lastStore{}) && former != storeOf(i.cfg) {
		outdated, present = present, snapshot.Contents{}
		result.Replaced = outdated.Len()
	}
	now := time.Now()
	result.Result = snapshot.Compare(in, present, i.Node, now)
	if req.DryRun || len(result.Conflicts) > 0 && !req.SkipConflicts {
		return result, nil
	}
	if err := snapshot.Empty(ctx, outdated, i.Stores); err != nil {
		return result, err
	}
	if result.Result, err = snapshot.Restore(ctx, in, present, i.Stores, req.SkipConflicts, now); err != nil {
		return result, fmt.Errorf("%w\nhint: what was written stays; restore the same file again", err)
	}
	result.Restored = true
	return result, noteStore(i.db, storeOf(i.cfg))
}
