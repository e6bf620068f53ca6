//! What a tree of joins costs.

use crate::{
    CostModel, Estimate, JoinKind, JoinWork, Node, RelationSet, Size,
    cost::sound,
    estimate::{Estimates, Scratch},
    hypergraph::Hypergraph,
    operator::Input,
};

/// The joins of a tree in post-order, as far as costs depend on them.
pub struct Steps(Vec<Step>);

struct Step {
    kind: JoinKind,
    hashed: bool,
    left: Input,
    right: Input,
    relations: RelationSet,
}

impl Steps {
    pub fn of(graph: &Hypergraph, root: &Node) -> Self {
        let mut steps = Self(vec![]);
        steps.add(graph, root);
        steps
    }

    fn add(&mut self, graph: &Hypergraph, node: &Node) -> (Input, RelationSet) {
        match node {
            Node::Leaf(relation) => (Input::Relation(*relation), RelationSet::single(*relation)),
            Node::Join(join) => {
                let (left, left_relations) = self.add(graph, &join.left);
                let (right, right_relations) = self.add(graph, &join.right);
                let hashes = |&number: &usize| graph.region.predicates[number].hashes(left_relations, right_relations);
                let hashed = join.predicates.iter().any(hashes);
                let relations = left_relations | right_relations;
                self.0.push(Step { kind: join.kind, hashed, left, right, relations });
                (Input::Join(self.0.len() - 1), relations)
            }
        }
    }

    /// Size and cost of each join.
    pub fn estimates(&self, estimates: &Estimates, model: &dyn CostModel) -> Vec<Estimate> {
        let (mut scratch, mut found) = (Scratch::default(), Vec::with_capacity(self.0.len()));
        for step in &self.0 {
            found.push(step.estimate(&found, estimates, model, &mut scratch));
        }
        found
    }

    /// The cost of all joins with estimates of which only those that have all `concerned` relations differ from the known ones.
    pub fn changed_cost(
        &self,
        known: &[Estimate],
        concerned: RelationSet,
        estimates: &Estimates,
        model: &dyn CostModel,
    ) -> f64 {
        let (mut scratch, mut found) = (Scratch::default(), Vec::with_capacity(self.0.len()));
        for (step, known) in self.0.iter().zip(known) {
            let changes = concerned.is_subset(step.relations);
            found.push(if changes { step.estimate(&found, estimates, model, &mut scratch) } else { *known });
        }
        total(&found)
    }
}

/// The cost of all joins.
pub fn total(estimates: &[Estimate]) -> f64 {
    estimates.iter().map(|estimate| estimate.cost).sum()
}

impl Step {
    /// Of a join of which all below are estimated.
    fn estimate(
        &self,
        below: &[Estimate],
        estimates: &Estimates,
        model: &dyn CostModel,
        scratch: &mut Scratch,
    ) -> Estimate {
        let input = |input| match input {
            Input::Relation(relation) => estimates.relation(relation),
            Input::Join(join) => Size { rows: below[join].rows, width: below[join].width },
        };
        let (build, probe) = (input(self.left), input(self.right));
        let output = estimates.size(self.relations, scratch);
        let work = JoinWork { kind: self.kind, hashed: self.hashed, build, probe, output };
        Estimate { rows: output.rows, width: output.width, cost: sound(model.cost(&work)) }
    }
}
