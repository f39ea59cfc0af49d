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

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/store/snapshot"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// StoreRequest says whose store is to be read or written without an agent.
type StoreRequest struct {
	Config   string // a file, or a directory that holds ironvip.toml
	StateDir string // "": as the configuration says
	Version  string // of this binary
}

// ImportRequest is what "vip import" was asked for.
type ImportRequest struct {
	StoreRequest
	Data        []byte // what "vip export" wrote; nil with None
	File        string // what to call it
	DryRun      bool   // change nothing
	SkipClashes bool   // import the rest
	None        bool   // import nothing, and let the agent start on the store as it is
}

// ImportResult is what an import has written, or would write.
type ImportResult struct {
	Store    string        `json:"store"`    // "bolt" or "consul"
	Imported bool          `json:"imported"` // false of a dry run, and when clashes kept everything out
	Leases   int           `json:"leases"`
	Services int           `json:"services"` // registrations
	States   int           `json:"states"`   // of backends, by operators
	Same     int           `json:"same"`     // were there already
	Ended    int           `json:"ended"`    // leases that had cooled down, or that cool down and are in use
	Replaced int           `json:"replaced"` // what was in the store from an earlier time, and was removed
	Clashes  []ImportClash `json:"clashes"`
}

// ImportClash is one thing that the store has otherwise. Kind is "lease",
// "registration" or "state"; Service is whose lease it is.
type ImportClash struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Service string `json:"service,omitempty"`
	Message string `json:"message"`
}

func (c ImportClash) String() string {
	if c.Service != "" {
		return fmt.Sprintf("%s %s of %s: %s", c.Kind, c.Name, c.Service, c.Message)
	}
	return fmt.Sprintf("%s %s: %s", c.Kind, c.Name, c.Message)
}

// contents is what the agent's store keeps, for `ironvip vip export`.
func (a *agent) export(ctx context.Context) (snapshot.Document, error) {
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

// idle opens the state file of a host whose agent is stopped, and its store.
type idle struct {
	cfg *configs.Config
	db  *store.DB
	*stores
}

// openIdle opens the store that a configuration names. With the state file in
// its hands no agent of this host can start. Close it.
func openIdle(ctx context.Context, req StoreRequest) (*idle, error) {
	cfg, problems := configs.Load(req.Config)
	if cfg == nil {
		return nil, problemsError("the configuration, which names the store, can't be used", problems)
	}
	if req.StateDir != "" {
		cfg.Node.StateDir = req.StateDir
	}
	db, err := openState(cfg)
	switch {
	case errors.Is(err, store.ErrLocked):
		return nil, &OfflineError{fmt.Errorf("an agent runs with the state directory %s", cfg.Node.StateDir), CauseRunning,
			"stop it first: systemctl stop ironvip; the kernel goes on forwarding"}
	case errors.Is(err, fs.ErrPermission):
		return nil, &OfflineError{err, CausePermission, "run this as root, or as the user ironvip"}
	case err != nil:
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

// Export writes all that the store of a stopped agent holds. Its errors may be an OfflineError.
func Export(ctx context.Context, req StoreRequest, to io.Writer) (err error) {
	i, err := openIdle(ctx, req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	if former, err := formerStore(i.db); err != nil {
		return err
	} else if former != (lastStore{}) && former != storeOf(i.cfg) {
		return fmt.Errorf("%s names the store %s, and what this host's services hold is in the store %s\n"+
			"hint: set ipam.store back for the export", i.cfg.Path, storeOf(i.cfg), former)
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

// maxProblems is how many mistakes of a file are shown.
const maxProblems = 20

// Import writes an export into the store that the configuration names, while its agent is
// stopped. Its errors may be an OfflineError.
func Import(ctx context.Context, req ImportRequest) (result ImportResult, err error) {
	result.Clashes = []ImportClash{}
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
			return result, problemsError("nothing was imported", problems)
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
		if req.DryRun {
			return result, nil
		}
		return result, noteStore(i.db, storeOf(i.cfg))
	}
	present, err := i.contents(ctx)
	if err != nil {
		return result, err
	}
	// A store of this host alone that it last used before another one has what
	// was so then, and nobody goes by it.
	former, err := formerStore(i.db)
	if err != nil {
		return result, err
	}
	outdated := snapshot.Contents{}
	if i.tree == nil && former != (lastStore{}) && former != storeOf(i.cfg) {
		outdated, present = present, snapshot.Contents{}
		result.Replaced = outdated.Len()
	}
	now := time.Now()
	var done snapshot.Result
	switch {
	case req.DryRun:
		done = snapshot.Preview(in, present, i.Node, now)
	default:
		if preview := snapshot.Preview(in, present, i.Node, now); len(preview.Clashes) > 0 && !req.SkipClashes {
			done = preview
			break
		}
		if err := snapshot.Empty(ctx, outdated, i.Stores); err != nil {
			return result, err
		}
		if done, err = snapshot.Import(ctx, in, present, i.Stores, req.SkipClashes, now); err != nil {
			return result, fmt.Errorf("%w\nhint: what was written stays; import the same file again", err)
		}
		result.Imported = true
	}
	result.Leases, result.Services, result.States, result.Same, result.Ended = done.Leases, done.Services, done.States, done.Same, done.Ended
	for _, c := range done.Clashes {
		result.Clashes = append(result.Clashes, ImportClash{Kind: c.Kind, Name: c.Name, Service: c.Service, Message: c.Message})
	}
	if result.Imported {
		err = noteStore(i.db, storeOf(i.cfg))
	}
	return result, err
}
