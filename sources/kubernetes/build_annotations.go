package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// annotationPrefix is the prefix of our annotations.
const annotationPrefix = "ironvip.io/"

// annotations are the fields of a service that annotations set, by their names without the prefix:
// the fields that a Service does not have itself.
var annotations = func() map[string]*spec.Field {
	out := maps.Clone(draft.Fields)
	for key := range specFields {
		delete(out, draft.Name(key))
	}
	return out
}()

// assigned are the annotations about addresses, which Kubernetes itself assigns to cluster IPs.
var assigned = []string{"pool", "vips", "share-key"}

// readAnnotations reads the annotations. An empty annotation counts as missing.
func (b *builder) readAnnotations() {
	for _, key := range sorted(b.s.Annotations) {
		name, ours := strings.CutPrefix(key, annotationPrefix)
		value := b.s.Annotations[key]
		if !ours || value == "" {
			continue
		}
		field := bracket("metadata.annotations", key)
		known, is := annotations[name]
		switch {
		case !is:
			b.bad(field, vip.Problem{Code: vip.CodeUnknownKey, Message: "is no annotation of ours", Hint: hintFor(name)})
		case b.o.AdoptClusterIPs && slices.Contains(assigned, name):
			b.warn(vip.CodeUnsupported, field, "remove it", "has no effect: the addresses are those that Kubernetes assigned")
		default:
			if err := draft.Set(&b.draft, known, value); err != nil {
				b.bad(field, err)
			}
		}
	}
}

// hintFor returns a hint for an unknown annotation.
func hintFor(name string) string {
	key := strings.ReplaceAll(name, "-", "_")
	if slices.Contains(strict.Keys(spec.Port{}), key) && key != "name" {
		key = "ports"
	}
	if field := specFields[key]; field != "" {
		return "use " + field
	}
	if near := strict.Nearest(name, sorted(annotations)); near != "" {
		return fmt.Sprintf("did you mean %q?", annotationPrefix+near)
	}
	return "remove it; known: " + annotationPrefix + strings.Join(sorted(annotations), ", "+annotationPrefix)
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
