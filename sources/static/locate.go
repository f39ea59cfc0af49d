package static

import (
	"strings"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Locate sets the places of problems of services from the line of their block, which is the origin of
// a service, to the line of their field. It leaves places that it doesn't find. It reads each file
// once.
func Locate(problems []vip.Problem) {
	files := map[string]map[string]block{} // by path, then by the place of a block
	for i := range problems {
		p := &problems[i]
		path := pathOf(p.Place)
		if path == "" || p.Service == "" || p.Field == "" {
			continue
		}
		blocks, read := files[path]
		if !read {
			blocks = blocksOf(path)
			files[path] = blocks
		}
		if b, found := blocks[p.Place]; found {
			p.Place = b.doc.Place(b.path + "." + p.Field)
		}
	}
}

// block is a [[service]] block of a file.
type block struct {
	doc  *tomlfile.Document
	path string // "service[0]"
}

// blocksOf returns the blocks of a file by their places; none of a file that can't be read.
func blocksOf(path string) map[string]block {
	text, problem := tomlfile.ReadFile(path, MaxSize)
	if problem != nil {
		return nil
	}
	doc, problem := tomlfile.Parse(path, text)
	if problem != nil {
		return nil
	}
	out := map[string]block{}
	for i := 0; doc.Has(strict.Index("service", i)); i++ {
		at := strict.Index("service", i)
		out[doc.Place(at)] = block{doc, at}
	}
	return out
}

// pathOf returns the path of "web.toml:7", or "" for a place that has no line.
func pathOf(place string) string { return place[:max(0, strings.LastIndexByte(place, ':'))] }
