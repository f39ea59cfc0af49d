package static

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// mode selects how the directory is read.
type mode uint8

const (
	readChanged mode = 0
	readAll     mode = 1 << (iota - 1) // also read files that look unchanged
	readPolled                         // remove no file
	confirmed                          // an empty directory is intended
)

// change is the difference that a read of the directory found.
type change struct {
	put     []vip.ServiceKey // those with another definition in effect
	gone    []vip.ServiceKey
	missing bool // files are gone that this read did not remove
}

// files is the state of the directory. A change costs O(size of the changed file) and, without an
// event that names the file, one stat per file. It is not safe for concurrent use.
type files struct {
	o       Options
	byPath  map[string]*file
	claims  map[vip.ServiceKey][]string // the files that define the service, sorted; one file unless the name is a duplicate
	winners map[vip.ServiceKey]string   // the file with the definition in effect
	bad     map[string]struct{}         // the files with problems
	twice   map[vip.ServiceKey]struct{} // the services that several files define
	dir     identity                    // of the directory at the last read
	parsed  atomic.Int64                // number of files parsed so far
	decoded atomic.Int64                // number of their blocks that were not known
	prior   func() map[string]*file     // the files of the last run of the agent, until this run has read the directory
	pools   []spec.Pool                 // at the last read
	epoch   int                         // changes with pools
}

// file is one file and the services that it contributes.
type file struct {
	stamp    stamp
	hash     digest
	epoch    int // of files, at the last parse
	rows     map[vip.ServiceKey]*row
	problems []vip.Problem
}

// row is a file's definition of a service. Origin is its current place; that in service may be
// older. A row of a file's state is immutable.
type row struct {
	service vip.Service
	origin  string
	text    digest // of its block in a file without problems; zero if unknown
}

// digest identifies a text. The zero digest is none.
type digest [sha256.Size]byte

// identity distinguishes files or directories that had the same path at different times.
type identity struct{ dev, inode uint64 }

// stamp very likely changes when its file changes. The zero stamp marks a file that must be read.
type stamp struct {
	identity
	size  int64
	mtime time.Time
}

// grain is more than the time resolution of any file system. A file that changed less than grain
// before it was read may change again and keep the same time.
const grain = 2 * time.Second

func newFiles(o Options) *files {
	return &files{o: o, byPath: map[string]*file{}, claims: map[vip.ServiceKey][]string{}, winners: map[vip.ServiceKey]string{},
		bad: map[string]struct{}{}, twice: map[vip.ServiceKey]struct{}{}, prior: sync.OnceValue(o.priorFiles)}
}

// priorFiles returns the files of the last run of the agent with their services that were in effect.
func (o *Options) priorFiles() map[string]*file {
	out := map[string]*file{}
	if o.Prior == nil {
		return out
	}
	for _, s := range o.Prior() {
		path := pathOf(s.Origin)
		if out[path] == nil {
			out[path] = &file{rows: map[vip.ServiceKey]*row{}}
		}
		out[path].rows[s.Key] = &row{service: s, origin: s.Origin}
	}
	return out
}

// known reports whether any file is known.
func (f *files) known() bool { return len(f.byPath) > 0 }

// distrust makes the next read check the content of these files even if their stamps are unchanged.
func (f *files) distrust(paths map[string]struct{}) {
	for path := range paths {
		if known := f.byPath[path]; known != nil {
			known.stamp = stamp{}
		}
	}
}

// read updates the state from the directory, or only from some files if only is not nil. If another
// directory is there now, it reads all of that. On an error the state is unchanged.
func (f *files) read(ctx context.Context, how mode, only map[string]struct{}) (c change, err error) {
	dir := stampOf(f.o.Path).identity
	var paths, gone []string
	if only != nil && f.dir != (identity{}) && f.dir == dir {
		paths, gone = existing(only)
	} else if paths, gone, err = f.list(); err != nil {
		return c, err
	}
	replaced := f.dir != (identity{}) && f.dir != dir
	if replaced && len(paths) == 0 && len(f.byPath) > 0 && how&confirmed == 0 {
		// The likely cause is that the directory's mount is gone.
		return c, fmt.Errorf("services directory %s was replaced by an empty one; put files into it, or reload if that is meant", f.o.Path)
	}
	if pools := f.o.Pools(); !reflect.DeepEqual(pools, f.pools) {
		f.pools = pools
		f.epoch++
	}
	fresh := make([]*file, len(paths))
	parallel.All(len(paths), func(i int) bool {
		fresh[i] = f.look(paths[i], how)
		return ctx.Err() == nil
	})
	if err := ctx.Err(); err != nil {
		return c, err
	}
	f.dir = dir

	for i, path := range paths {
		if fresh[i] != nil {
			f.set(path, fresh[i], &c)
		}
	}
	for _, path := range gone {
		if how&readPolled != 0 {
			c.missing = true
			continue
		}
		f.set(path, nil, &c)
	}
	f.prior = func() map[string]*file { return nil }
	return c, nil
}

// list returns the files of the directory, and the known ones that are not there.
func (f *files) list() (paths, gone []string, err error) {
	if paths, err = ListServices(f.o.Path); err != nil {
		return nil, nil, err
	}
	for path := range f.byPath {
		if _, there := slices.BinarySearch(paths, path); !there {
			gone = append(gone, path)
		}
	}
	return paths, gone, nil
}

// existing divides files into those that exist, sorted, and those that don't.
func existing(files map[string]struct{}) (paths, gone []string) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			gone = append(gone, path)
		} else {
			paths = append(paths, path)
		}
	}
	return paths, gone
}

// look returns the new state of a file, or nil if it is unchanged. It is safe for concurrent use with
// different paths.
func (f *files) look(path string, how mode) *file {
	known := f.byPath[path]
	at := time.Now()
	now := stampOf(path)
	if known != nil && known.stamp != (stamp{}) && known.stamp == now && how&readAll == 0 {
		return nil
	}
	if at.Sub(now.mtime) < grain {
		now = stamp{} // read it again next time
	}
	data, problem := tomlfile.ReadFile(path, MaxSize)
	var hash digest
	if problem == nil {
		hash = sha256.Sum256(data)
		if known != nil && known.hash == hash && how&readAll == 0 {
			known.stamp = now
			return nil
		}
	}
	var content ServicesFile
	var rows map[vip.ServiceKey]*row
	if problem != nil {
		now = stamp{} // changes of permissions and links do not show in the stamp
		content = ServicesFile{Path: path, Incomplete: true, Problems: []vip.Problem{*problem}}
	} else {
		f.parsed.Add(1)
		content, rows = f.parse(path, data, known)
	}
	if known == nil && content.lacks() {
		known = f.prior()[path]
	}
	state := content.over(known, rows)
	state.stamp, state.hash, state.epoch = now, hash, f.epoch
	return state
}

// parse parses a file that had the state before, which may be nil. It parses only changed blocks, if it
// can. The rows are those of the services.
func (f *files) parse(path string, data []byte, before *file) (content ServicesFile, rows map[vip.ServiceKey]*row) {
	content, rows, decoded, ok := parseBlocks(path, data, f.o.Name, f.pools, before.texts(f.epoch))
	f.decoded.Add(int64(decoded))
	if ok {
		return content, rows
	}
	content = ParseServices(path, data, f.o.Name, f.pools)
	rows = make(map[vip.ServiceKey]*row, len(content.Services))
	for _, s := range content.Services {
		rows[s.Key] = &row{service: s, origin: s.Origin}
	}
	return content, rows
}

// texts returns the rows of blocks with a known text, if they were parsed in the epoch.
func (known *file) texts(epoch int) map[digest]*row {
	if known == nil || known.epoch != epoch {
		return nil
	}
	out := make(map[digest]*row, len(known.rows))
	for _, r := range known.rows {
		out[r.text] = r
	}
	delete(out, digest{})
	return out
}

// lacks reports whether services of the state before may stay in effect.
func (content *ServicesFile) lacks() bool {
	return content.Incomplete || content.Empty || len(content.Refused) > 0
}

// over returns the state of a file with this content and these rows that had another state before,
// or nil. It changes rows. Valid services take effect. For refused services, and for all missing
// ones if the content is incomplete or empty, the version from before stays in effect.
func (content *ServicesFile) over(before *file, rows map[vip.ServiceKey]*row) *file {
	if rows == nil {
		rows = map[vip.ServiceKey]*row{} // none could be read
	}
	now := &file{rows: rows, problems: content.Problems}
	if before == nil {
		return now
	}
	for key, r := range now.rows {
		if old, had := before.rows[key]; had && old != r && alike(&old.service, &r.service) {
			now.rows[key] = &row{old.service, r.origin, r.text}
		}
	}
	keep := func(key vip.ServiceKey) bool {
		old, had := before.rows[key]
		if _, has := now.rows[key]; has || !had {
			return false
		}
		now.rows[key] = &row{service: old.service, origin: old.origin} // its text isn't in the file
		return true
	}
	kept := map[string]struct{}{}
	for _, key := range content.Refused {
		if keep(key) {
			kept[key.String()] = struct{}{}
		}
	}
	others := 0
	if content.Incomplete || content.Empty {
		for key := range before.rows {
			if keep(key) {
				others++
			}
		}
	}
	if content.Empty && others > 0 {
		now.problems = []vip.Problem{{Code: vip.CodeInvalid, Place: content.Path, Message: "is empty, as after a write that was cut off",
			Hint: "delete the file to remove its services"}}
	}
	now.problems = slices.Clone(now.problems)
	for i := range now.problems {
		p := &now.problems[i]
		if _, stays := kept[p.Service]; stays {
			p.Hint = join(p.Hint, "its last good version stays in effect")
		} else if others > 0 {
			p.Hint = join(p.Hint, othersStay(others))
			others = 0 // add the hint once only
		}
	}
	return now
}

// othersStay returns a hint that n services stay in effect.
func othersStay(n int) string {
	if n == 1 {
		return "the service that the file had before stays in effect"
	}
	return fmt.Sprintf("the %d services that the file had before stay in effect", n)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// set replaces the state of a file and adds the differences to c. Now is nil if the file is gone.
func (f *files) set(path string, now *file, c *change) {
	before := f.byPath[path]
	if now == nil {
		delete(f.byPath, path)
		now = &file{}
	} else {
		f.byPath[path] = now
	}
	if len(now.problems) > 0 {
		f.bad[path] = struct{}{}
	} else {
		delete(f.bad, path)
	}
	if before == nil {
		before = &file{}
	}
	for key, r := range now.rows {
		if old, had := before.rows[key]; !had || old != r && !reflect.DeepEqual(&old.service, &r.service) {
			f.edit(key, path, had, true, c)
		}
	}
	for key := range before.rows {
		if _, has := now.rows[key]; !has {
			f.edit(key, path, true, false, c)
		}
	}
}

// edit updates the definition in effect for a name after the file at path has changed its
// definition. Had and has mean that the file had one before, and has one now.
func (f *files) edit(key vip.ServiceKey, path string, had, has bool, c *change) {
	if had != has {
		f.claim(key, path, has)
	}
	f.decide(key, path, c)
}

// claim records whether a file defines a service.
func (f *files) claim(key vip.ServiceKey, path string, has bool) {
	list := f.claims[key]
	i, _ := slices.BinarySearch(list, path)
	if has {
		list = slices.Insert(list, i, path)
	} else {
		list = slices.Delete(list, i, i+1)
	}
	if f.claims[key] = list; len(list) == 0 {
		delete(f.claims, key)
	}
	if len(list) > 1 {
		f.twice[key] = struct{}{}
	} else {
		delete(f.twice, key)
	}
}

// decide selects the definition in effect for a name, after the definition of the file at path has
// changed. The file in effect, also of the last run, keeps its place. Otherwise the first file is selected.
func (f *files) decide(key vip.ServiceKey, path string, c *change) {
	claims := f.claims[key]
	was, had := f.winners[key]
	if len(claims) == 0 {
		if had {
			delete(f.winners, key)
			c.gone = append(c.gone, key)
		}
		return
	}
	winner := claims[0]
	if had && slices.Contains(claims, was) {
		winner = was
	}
	if len(claims) > 1 {
		for _, claim := range claims {
			if last := f.prior()[claim]; last != nil && last.rows[key] != nil {
				winner = claim
			}
		}
	}
	f.winners[key] = winner
	if winner != was || winner == path {
		c.put = append(c.put, key)
	}
}

// services returns the services in effect of these names.
func (f *files) services(keys []vip.ServiceKey) []vip.Service {
	out := make([]vip.Service, 0, len(keys))
	for _, key := range keys {
		if path, is := f.winners[key]; is { // else it is gone again
			out = append(out, f.byPath[path].rows[key].service)
		}
	}
	return out
}

// all returns the names of the services in effect, in no order.
func (f *files) all() []vip.ServiceKey { return slices.Collect(maps.Keys(f.winners)) }

// problems returns all problems, sorted by place. It costs O(problems).
func (f *files) problems() []vip.Problem {
	var out []vip.Problem
	for path := range f.bad {
		out = append(out, f.byPath[path].problems...)
	}
	for key := range f.twice {
		winner := f.winners[key]
		for _, path := range f.claims[key] {
			if path != winner {
				out = append(out, sources.Duplicate(key, f.byPath[path].rows[key].origin, f.byPath[winner].rows[key].origin))
			}
		}
	}
	// Maps have no order. Within a file the problems already have one.
	slices.SortStableFunc(out, func(a, b vip.Problem) int { return strings.Compare(a.Service, b.Service) })
	tomlfile.SortProblems(out)
	return out
}

// alike reports whether two versions of a service differ at most in their line. Adding a service
// above it changes the line.
func alike(a, b *vip.Service) bool {
	moved := *b
	moved.Origin = a.Origin
	return reflect.DeepEqual(a, &moved)
}

// stampOf returns the stamp of a file or directory and follows links. It is zero if stat fails.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	st := info.Sys().(*syscall.Stat_t)
	return stamp{identity{uint64(st.Dev), st.Ino}, info.Size(), info.ModTime()} //nolint:unconvert // Dev is 32 bits wide on some platforms
}
