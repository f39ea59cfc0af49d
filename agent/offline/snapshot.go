package offline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip"
)

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
	Store    string `json:"store"`    // "bolt", "consul" or "etcd"
	Restored bool   `json:"restored"` // false for a dry run, and if conflicts prevented the restore
	Replaced int    `json:"replaced"` // outdated values of the store that were removed
	snapshot.Result
}

// Save writes a snapshot of a stopped agent's store. Its error may be an Error.
func Save(ctx context.Context, req StoreRequest, to io.Writer) (err error) {
	s, err := openStores(ctx, req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if former, moved, err := stores.Former(s.Config, s.DB); err != nil {
		return err
	} else if moved {
		return fmt.Errorf("%s names the store %s, but this host's leases are in the store %s\n"+
			"hint: set ipam.store back to save it", s.Config.Path, stores.PlaceOf(s.Config), former)
	}
	document, err := s.Document(ctx, req.Version)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return err
	}
	_, err = to.Write(append(text, '\n'))
	return err
}

// maxProblems is the maximum number of displayed mistakes of a file.
const maxProblems = 20

// Restore writes a snapshot into the store that the configuration names, while its agent
// is stopped. Its error may be an Error.
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
			return result, configs.Refusal("snapshot invalid: nothing was restored", problems)
		}
		in = read
	}
	s, err := openStores(ctx, req.StoreRequest)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	result.Store = s.Config.IPAM.Store
	if req.None {
		return result, stores.Note(s.DB, stores.PlaceOf(s.Config))
	}
	present, err := s.Contents(ctx)
	if err != nil {
		return result, err
	}
	// If the host last ran on another store, its own store holds an earlier state, which no service
	// uses any more.
	_, moved, err := stores.Former(s.Config, s.DB)
	if err != nil {
		return result, err
	}
	outdated := snapshot.Contents{}
	if s.Tree == nil && moved {
		outdated, present = present, snapshot.Contents{}
		result.Replaced = outdated.Len()
	}
	now := time.Now()
	result.Result = snapshot.Compare(in, present, s.Node, now)
	if req.DryRun || len(result.Conflicts) > 0 && !req.SkipConflicts {
		return result, nil
	}
	if err := snapshot.Empty(ctx, outdated, s.Stores); err != nil {
		return result, err
	}
	if result.Result, err = snapshot.Restore(ctx, in, present, s.Stores, req.SkipConflicts, now); err != nil {
		return result, fmt.Errorf("%w\nhint: what was written stays; restore the same file again", err)
	}
	result.Restored = true
	return result, stores.Note(s.DB, stores.PlaceOf(s.Config))
}
