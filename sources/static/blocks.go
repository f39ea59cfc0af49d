package static

import (
	"bytes"
	"crypto/sha256"
	"iter"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// header starts a block if a line starts with it.
var header, lineOfHeader = []byte("[[service]]"), []byte("\n[[service]]")

// textBlock is the text of a file from one header to the next, and what parse makes of it.
type textBlock struct {
	line    int // the number of its first line
	text    []byte
	row     *row         // nil: its service is refused
	refused ServicesFile // the content, if the service is refused
	decoded bool         // the text was not known
}

// parseBlocks parses each block as a file of its own, on all processors, or takes it from known, which
// has blocks of earlier versions of the file that were checked against the same pools. It succeeds
// only if each block is TOML and has exactly one service, with a name that no other block has. It
// costs O(size of the file) for the digests, and more for the blocks that are not known. Decoded is
// their number. The rows are those of the services, and content has no services.
//
// The result is then that of ParseServices. A text that is valid TOML ends outside of strings,
// arrays and inline tables, so a header in the next line is one in the whole file, too. It adds a
// service to the list, and the keys and tables after it belong to this service alone, because its
// block has nothing else. FuzzBlocks compares both.
func parseBlocks(path string, data []byte, source string, pools []spec.Pool, known map[digest]*row) (content ServicesFile, rows map[vip.ServiceKey]*row, decoded int, ok bool) {
	var list []textBlock
	for line, text := range blocks(data) {
		list = append(list, textBlock{line: line, text: text})
	}
	good := parallel.All(len(list), func(i int) bool { return list[i].parse(path, source, pools, known) })
	if !good || len(list) == 0 {
		return content, nil, 0, false
	}
	content.Path, rows = path, make(map[vip.ServiceKey]*row, len(list))
	refused := map[vip.ServiceKey]struct{}{}
	for i := range list {
		b := &list[i]
		if b.decoded {
			decoded++
		}
		if b.row != nil {
			rows[b.row.service.Key] = b.row
			continue
		}
		content.Refused = append(content.Refused, b.refused.Refused...)
		content.found.Add(b.refused.Problems...)
		refused[b.refused.Refused[0]] = struct{}{}
	}
	content.Problems = content.found.List()
	for key := range refused {
		if _, twice := rows[key]; twice {
			return content, nil, 0, false
		}
	}
	return content, rows, decoded, len(rows)+len(refused) == len(list)
}

// parse parses the block, unless known has a row of its text. It returns false if the block has
// something else than one service with a usable name.
func (b *textBlock) parse(path, source string, pools []spec.Pool, known map[digest]*row) bool {
	id := digest(sha256.Sum256(b.text))
	if b.row = known[id]; b.row != nil {
		// Text before the header is only in the first block, and the line of that header stays.
		if at := tomlfile.Place(path, b.line); bytes.HasPrefix(b.text, header) && b.row.origin != at {
			b.row = &row{b.row.service, at, id}
			b.row.service.Origin = b.row.origin
		}
		return true
	}
	b.decoded = true
	doc, problem := tomlfile.ParsePart(path, b.text, b.line-1)
	if problem != nil {
		return false
	}
	if list, _ := doc.Tree["service"].([]map[string]any); len(list) != 1 {
		return false
	}
	content := parseDocument(doc, source, pools)
	switch {
	case content.Incomplete:
		return false
	case len(content.Services) == 1:
		b.row = &row{content.Services[0], content.Services[0].Origin, id}
	default:
		b.refused = content
	}
	return true
}

// blocks divides data before each line, but the first, that starts with the header. It returns each
// block with the number of its first line.
func blocks(data []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		own := 0 // where the header of the next block is
		if !bytes.HasPrefix(data, header) {
			own = max(0, bytes.Index(data, lineOfHeader))
		}
		for line := 1; len(data) > 0; own = 0 {
			end := len(data)
			if i := bytes.Index(data[own+1:], lineOfHeader); i >= 0 {
				end = own + 1 + i + 1
			}
			if !yield(line, data[:end]) {
				return
			}
			line += bytes.Count(data[:end], []byte("\n"))
			data = data[end:]
		}
	}
}
