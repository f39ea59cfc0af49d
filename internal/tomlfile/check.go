package tomlfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Checker collects what is wrong with the decoded values of one table of a document. Keys are
// those of the table. Checkers of one document share their problems.
type Checker struct {
	doc    *Document
	path   string // of the table; "" is the document
	shared *checked
}

// checked is what the Checkers of one document share.
type checked struct {
	undecoded []vip.Problem
	problems  vip.Problems
	claims    map[string]string // the place of the table that claimed an id
}

// NewChecker returns the Checker of a whole document. Undecoded are the problems that decoding
// found; a later problem of the same field is dropped.
func NewChecker(doc *Document, undecoded []vip.Problem) *Checker {
	return &Checker{doc: doc, shared: &checked{undecoded: undecoded, claims: map[string]string{}}}
}

// Problems returns what decoding and all checks found, located and sorted.
func (c *Checker) Problems() []vip.Problem {
	all := spec.Merge(c.shared.undecoded, c.shared.problems.List())
	c.doc.Locate(all)
	return all
}

// In returns the Checker of a table within this one.
func (c *Checker) In(table string) *Checker {
	return &Checker{doc: c.doc, path: c.Field(table), shared: c.shared}
}

// Field returns the path of a key; "" is the table itself. The key may be a path.
func (c *Checker) Field(key string) string {
	return strings.Trim(c.path+"."+key, ".")
}

// Bad reports a problem with a key.
func (c *Checker) Bad(key, hint, format string, args ...any) {
	c.Add(key, vip.Problem{Code: vip.CodeInvalid, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// Add reports a problem with a key.
func (c *Checker) Add(key string, p vip.Problem) {
	p.Field = c.Field(key)
	c.shared.problems.Add(p)
}

// Has reports whether the document has a key.
func (c *Checker) Has(key string) bool { return c.doc.Has(c.Field(key)) }

// Place returns the file and line of a key.
func (c *Checker) Place(key string) string { return c.doc.Place(c.Field(key)) }

// Claim returns the place of the table that claimed id before this one, if any. Ids are names
// that only one table of the document may use.
func (c *Checker) Claim(id string) (by string, taken bool) {
	by, taken = c.shared.claims[id]
	if !taken {
		c.shared.claims[id] = c.Place("")
	}
	return by, taken
}

// Choice requires one of the words in use.
func (c *Checker) Choice(key, value string, use ...string) {
	c.add(key, strict.CheckWord(value, use...))
}

// Word requires a name that messages and metrics can show.
func (c *Checker) Word(key, s string) {
	c.add(key, strict.CheckName(s, spec.MaxLabelKey))
}

// add reports a vip.Problem.
func (c *Checker) add(key string, err error) {
	if p, bad := errors.AsType[vip.Problem](err); bad {
		c.Add(key, p)
	}
}

// Label requires a DNS label.
func (c *Checker) Label(key, name string) {
	if err := vip.CheckLabel(name); err != nil {
		c.Bad(key, `use 1 to 63 of a-z, 0-9 and inner "-"`, "%s", err)
	}
}

// List checks each item of a list, and that it is there once.
func (c *Checker) List(key string, items []string, check func(key, item string)) {
	for i, item := range items {
		at := strict.Index(key, i)
		check(at, item)
		if item != "" && slices.Contains(items[:i], item) {
			c.Bad(at, "remove it", "%s is defined twice", strict.Quote(item))
		}
	}
}

// Absolute requires an absolute path.
func (c *Checker) Absolute(key, path string) {
	if !filepath.IsAbs(path) || strings.ContainsFunc(path, unicode.IsControl) {
		c.Bad(key, "write the path from the root: /...", "%s is not an absolute path", strict.Quote(path))
	}
}

// MaxSocketPath is the longest path of a Unix socket, in bytes. sockaddr_un has room for 108
// with the closing zero.
const MaxSocketPath = 107

// Socket requires the absolute path of a Unix socket.
func (c *Checker) Socket(key, path string) {
	c.Absolute(key, path)
	if len(path) > MaxSocketPath {
		c.Bad(key, "use a shorter path", "has %d bytes, a socket's path has up to %d", len(path), MaxSocketPath)
	}
}

// AbsolutePath returns path as an absolute path. A relative one starts at the document's folder.
func (c *Checker) AbsolutePath(path string) string { return c.doc.AbsolutePath(path) }

// AbsolutePath returns path as an absolute path. A relative one starts at the document's folder.
func (d *Document) AbsolutePath(path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(d.Path), path)
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
	}
	return filepath.Clean(path)
}

// Credentials is the prefix of a path in systemd's directory of credentials.
const Credentials = "$CREDENTIALS_DIRECTORY/"

// File makes the path of a file absolute, or requires the name of a credential. "" is no file.
func (c *Checker) File(key string, path *string) {
	name, isCredential := strings.CutPrefix(*path, Credentials)
	switch {
	case *path == "":
	case isCredential:
		if name == "" || strings.Contains(name, "/") || strings.ContainsFunc(name, unicode.IsControl) {
			c.Bad(key, `write it as "`+Credentials+`NAME"`, "%s names no credential", strict.Quote(*path))
		}
	case strings.HasPrefix(*path, "$"):
		c.Bad(key, `use a path, or "`+Credentials+`NAME" for a credential of systemd`, "%s: no variable but CREDENTIALS_DIRECTORY is known here", strict.Quote(*path))
	default:
		*path = c.AbsolutePath(*path)
		c.Absolute(key, *path)
	}
}

// ResolvePath replaces the prefix Credentials in the path of a file by systemd's directory. It
// fails in a process that systemd gave no credentials.
func ResolvePath(path string) (string, error) {
	name, isCredential := strings.CutPrefix(path, Credentials)
	if !isCredential {
		return path, nil
	}
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", vip.Problem{Code: vip.CodeInvalid, Message: path + ": this process has no credentials of systemd",
			Hint: "add LoadCredential=" + name + ":/path to the unit, or write a path from the root"}
	}
	return filepath.Join(dir, name), nil
}

// NamedFile is a file that a key names. Path may begin with Credentials; "" is no file.
type NamedFile struct {
	Key, Path string
	// Check reports what is wrong with the content of the readable file at path. It may be nil.
	Check func(path string) *vip.Problem
}

// Problem reads the file and returns what is wrong with it, by its key. It is nil for no file
// and for a credential of another process.
func (f *NamedFile) Problem(limit int) *vip.Problem {
	path, err := ResolvePath(f.Path)
	if path == "" || err != nil {
		return nil
	}
	_, problem := ReadFile(path, limit)
	if problem != nil {
		problem.Message = path + ": " + problem.Message
	} else if f.Check != nil {
		problem = f.Check(path)
	}
	if problem != nil {
		problem.Field = f.Key
	}
	return problem
}
