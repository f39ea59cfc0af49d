package static

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// mode is how the directory is read.
type mode uint8

const (
	readChanged mode = 0
	readAll     mode = 1 << (iota - 1) // also files that look unchanged
	readPolled                         // take no file away
	confirmed                          // an empty directory is meant to be empty
)

// change is what reading the directory changed.
type change struct {
	put     []vip.Service
	gone    []vip.ServiceKey
	files   []string // whose services are others now
	missing bool     // files are gone, and were not taken away
}

// files is what the directory says. Its cost for a change is O(the file), and
// a stat for every file. It is not safe for concurrent use.
type files struct {
	o       Options
	byPath  map[string]*file
	claims  map[vip.ServiceKey][]string // the files with that service, sorted; one, but for duplicates
	force   map[vip.ServiceKey]row      // the services in force
	twice   map[vip.ServiceKey]struct{} // those with more than one claim
	unsaved map[string]struct{}
	dir     identity // of the directory when it was last read
	parsed  int      // files parsed so far
}

// file is one file and what is in force of it.
type file struct {
	stamp    stamp
	hash     [sha256.Size]byte
	rows     map[vip.ServiceKey]vip.Service
	origins  map[vip.ServiceKey]string // where they are now; a row's own may be older
	problems []vip.Problem
}

// row is a service in force and the file that it is from.
type row struct {
	service vip.Service
	path    string
}

// identity tells one file or directory from another at the same path.
type identity struct{ dev, inode uint64 }

// stamp changes when a file does, in all likelihood; the zero stamp is that of
// a file to be read.
type stamp struct {
	identity
	size  int64
	mtime time.Time
}

// grain is more than the resolution of any file system's times: a file that
// changed so shortly before it was read may change again with the same time.
const grain = 2 * time.Second

func newFiles(o Options) *files {
	return &files{o: o, byPath: map[string]*file{}, claims: map[vip.ServiceKey][]string{}, force: map[vip.ServiceKey]row{},
		twice: map[vip.ServiceKey]struct{}{}, unsaved: map[string]struct{}{}}
}

// restore takes over what was last good in an earlier run of the agent.
func (f *files) restore(all map[string]LastGood) {
	var c change
	holders := map[vip.ServiceKey]string{}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if filepath.Dir(path) != f.o.Path {
			continue // another source's
		}
		was := &file{rows: map[vip.ServiceKey]vip.Service{}, origins: map[vip.ServiceKey]string{}}
		for _, s := range all[path].Services {
			service, problems := s.Spec.Build(f.o.Name, s.Origin)
			if len(problems) > 0 { // good for an earlier version only
				f.o.Log.Error("a remembered service is refused", "service", s.Spec.Title(), "err", problems[0])
				continue
			}
			was.rows[service.Key], was.origins[service.Key] = service, s.Origin
			if !s.Aside {
				holders[service.Key] = path
			}
		}
		f.set(path, was, &c)
	}
	for key, path := range holders {
		f.force[key] = row{f.byPath[path].rows[key], path}
	}
}

// known reports whether any file is known, be it from an earlier run.
func (f *files) known() bool { return len(f.byPath) > 0 }

// distrust makes the next read look into these files, however they look.
func (f *files) distrust(paths map[string]struct{}) {
	for path := range paths {
		if known := f.byPath[path]; known != nil {
			known.stamp = stamp{}
		}
	}
}

// read brings everything up to date with the directory. On an error nothing
// has changed.
func (f *files) read(ctx context.Context, how mode) (c change, err error) {
	dir := identityOf(f.o.Path)
	paths, err := ListServices(f.o.Path)
	if err != nil {
		return c, err
	}
	replaced := f.dir != (identity{}) && f.dir != dir
	if replaced && len(paths) == 0 && len(f.byPath) > 0 && how&confirmed == 0 {
		// The mount that was there is gone, more likely than not.
		return c, fmt.Errorf("services directory %s was replaced by an empty one; put files into it, or reload if that is meant", f.o.Path)
	}
	fresh := map[string]*file{}
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		if now := f.look(path, how); now != nil {
			fresh[path] = now
		}
	}
	f.dir = dir

	present := make(map[string]struct{}, len(paths))
	for _, path := range paths {
		present[path] = struct{}{}
		if now := fresh[path]; now != nil {
			f.set(path, now, &c)
		}
	}
	for path := range f.byPath {
		if _, still := present[path]; still {
			continue
		}
		if how&readPolled != 0 {
			c.missing = true
			continue
		}
		f.set(path, nil, &c)
	}
	return c, nil
}

// look returns what a file says now, or nil when that is what is known.
func (f *files) look(path string, how mode) *file {
	known := f.byPath[path]
	at := time.Now()
	now := stampOf(path)
	if known != nil && known.stamp != (stamp{}) && known.stamp == now && how&readAll == 0 {
		return nil
	}
	if at.Sub(now.mtime) < grain {
		now = stamp{} // look again next time
	}
	data, problem := tomlfile.ReadFile(path, MaxSize)
	var hash [sha256.Size]byte
	if problem == nil {
		hash = sha256.Sum256(data)
		if known != nil && known.hash == hash && how&readAll == 0 {
			known.stamp = now
			return nil
		}
	}
	var says ServicesFile
	if problem != nil {
		now = stamp{} // permissions and links change unseen
		says = ServicesFile{Path: path, Incomplete: true, Problems: []vip.Problem{*problem}}
	} else {
		f.parsed++
		says = ParseServices(path, data, f.o.Name, f.o.Pools())
	}
	return f.settle(says, known, now, hash)
}

// settle decides what is in force of a file that says so: what it says that is
// good, and for the rest what it was before.
func (f *files) settle(says ServicesFile, before *file, at stamp, hash [sha256.Size]byte) *file {
	now := &file{stamp: at, hash: hash, rows: map[vip.ServiceKey]vip.Service{}, origins: map[vip.ServiceKey]string{}, problems: says.Problems}
	for _, s := range says.Services {
		now.rows[s.Key], now.origins[s.Key] = s, s.Origin
	}
	if before == nil {
		return now
	}
	for key, s := range now.rows {
		if old, had := before.rows[key]; had && alike(old, s) {
			now.rows[key] = old
		}
	}
	keep := func(key vip.ServiceKey) bool {
		old, had := before.rows[key]
		if _, has := now.rows[key]; has || !had {
			return false
		}
		now.rows[key], now.origins[key] = old, before.origins[key]
		return true
	}
	kept := map[string]struct{}{}
	for _, key := range says.Refused {
		if keep(key) {
			kept[key.String()] = struct{}{}
		}
	}
	others := 0
	if says.Incomplete || says.Empty {
		for key := range before.rows {
			if keep(key) {
				others++
			}
		}
	}
	if says.Empty && others > 0 {
		now.problems = []vip.Problem{{Code: vip.CodeInvalid, Place: says.Path, Message: "is empty, as after a write that was cut off",
			Hint: "delete the file to remove its services"}}
	}
	now.problems = slices.Clone(now.problems)
	for i := range now.problems {
		p := &now.problems[i]
		if _, stays := kept[p.Service]; stays {
			p.Hint = join(p.Hint, "its last good version stays in force")
		} else if others > 0 {
			p.Hint = join(p.Hint, stay(others))
			others = 0 // said once
		}
	}
	return now
}

// stay says that n services stay as they were.
func stay(n int) string {
	if n == 1 {
		return "the service that the file had before stays in force"
	}
	return fmt.Sprintf("the %d services that the file had before stay in force", n)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// set puts what a file says in the place of what it said before, nil for a file
// that is gone, and notes what that changes.
func (f *files) set(path string, now *file, c *change) {
	before := f.byPath[path]
	touched := map[vip.ServiceKey]struct{}{}
	if before != nil {
		for key := range before.rows {
			touched[key] = struct{}{}
		}
	}
	if now == nil {
		delete(f.byPath, path)
	} else {
		f.byPath[path] = now
		for key := range now.rows {
			touched[key] = struct{}{}
		}
	}
	changed := (before == nil) != (now == nil)
	for key := range touched {
		had, has := before.has(key), now.has(key)
		if had != has || !reflect.DeepEqual(before.rows[key], now.rows[key]) {
			changed = true
		}
		if had != has {
			f.claim(key, path, has)
		}
		f.decide(key, c)
	}
	if changed {
		c.files = append(c.files, path)
	}
}

func (f *file) has(key vip.ServiceKey) bool {
	if f == nil {
		return false
	}
	_, has := f.rows[key]
	return has
}

// claim notes that a file has a service, or no more.
func (f *files) claim(key vip.ServiceKey, path string, has bool) {
	list := f.claims[key]
	i, _ := slices.BinarySearch(list, path)
	if has {
		list = slices.Insert(list, i, path)
	} else {
		list = slices.Delete(list, i, i+1)
	}
	f.claims[key] = list
	if len(list) == 0 {
		delete(f.claims, key)
	}
	if len(list) > 1 {
		f.twice[key] = struct{}{}
	} else {
		delete(f.twice, key)
	}
}

// decide puts the right claim in force: that of the file whose claim is in
// force already, else of the first.
func (f *files) decide(key vip.ServiceKey, c *change) {
	claims := f.claims[key]
	was, had := f.force[key]
	if len(claims) == 0 {
		if had {
			delete(f.force, key)
			c.gone = append(c.gone, key)
		}
		return
	}
	winner := claims[0]
	if had && slices.Contains(claims, was.path) {
		winner = was.path
	}
	if had && winner != was.path {
		c.files = append(c.files, winner) // it is remembered as one that is held aside
	}
	now := row{f.byPath[winner].rows[key], winner}
	f.force[key] = now
	if !had || !reflect.DeepEqual(was.service, now.service) {
		c.put = append(c.put, now.service)
	}
}

// services returns what is in force, in no order.
func (f *files) services() []vip.Service {
	out := make([]vip.Service, 0, len(f.force))
	for _, r := range f.force {
		out = append(out, r.service)
	}
	return out
}

// problems returns everything that is wrong, sorted by place.
func (f *files) problems() []vip.Problem {
	var out []vip.Problem
	for _, file := range f.byPath {
		out = append(out, file.problems...)
	}
	for key := range f.twice {
		winner := f.force[key].path
		for _, path := range f.claims[key] {
			if path != winner {
				out = append(out, Duplicate(key, f.byPath[path].origins[key], f.byPath[winner].origins[key]))
			}
		}
	}
	// The maps have no order; within a file the problems have one already.
	slices.SortStableFunc(out, func(a, b vip.Problem) int { return strings.Compare(a.Service, b.Service) })
	tomlfile.SortProblems(out)
	return out
}

// remembered returns what is to be remembered of a file.
func (f *files) remembered(path string) (LastGood, bool) {
	known := f.byPath[path]
	if known == nil {
		return LastGood{}, false
	}
	out := LastGood{Services: make([]LastGoodService, 0, len(known.rows))}
	keys := slices.SortedFunc(maps.Keys(known.rows), func(a, b vip.ServiceKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, key := range keys {
		out.Services = append(out.Services, LastGoodService{Origin: known.origins[key], Aside: f.force[key].path != path,
			Spec: spec.FromService(known.rows[key])})
	}
	return out, true
}

// alike reports whether two versions of a service differ in nothing but their
// line: what another service above it changes.
func alike(a, b vip.Service) bool {
	if withoutLine(a.Origin) != withoutLine(b.Origin) {
		return false
	}
	a.Origin = b.Origin
	return reflect.DeepEqual(a, b)
}

func withoutLine(origin string) string {
	if i := strings.LastIndexByte(origin, ':'); i >= 0 {
		return origin[:i]
	}
	return origin
}

// stampOf looks at a file, through links; the zero stamp is one that can't be
// looked at.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{identity: identityIn(info), size: info.Size(), mtime: info.ModTime()}
}

func identityOf(path string) identity {
	info, err := os.Stat(path)
	if err != nil {
		return identity{}
	}
	return identityIn(info)
}

func identityIn(info fs.FileInfo) identity {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return identity{uint64(st.Dev), st.Ino} //nolint:unconvert // Dev is 32 bits wide on some platforms
	}
	return identity{}
}
