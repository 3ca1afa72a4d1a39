//! What the user says of the model.

use std::path::PathBuf;

use anyhow::{Context, bail};
use gatescope_routing::{
    model_config::model_shape,
    shape::{LayerSet, ModelShape, RowShape},
};

use crate::settings::Settings;

#[derive(Debug, clap::Args)]
pub(crate) struct ModelArguments {
    /// The model's config.json, as Hugging Face keeps it with the weights: says layers, experts and which layers are dense
    #[arg(long, value_name = "FILE", env = "GATESCOPE_MODEL_CONFIG", hide_env_values = true)]
    model_config: Option<PathBuf>,
    /// Layers and top_k of the model, as 48x8, where no config.json is at hand
    #[arg(long, value_name = "LAYERSxTOP_K", env = "GATESCOPE_SHAPE", hide_env_values = true)]
    shape: Option<String>,
    /// Experts per layer; needs --shape
    #[arg(long, value_name = "N", env = "GATESCOPE_EXPERTS", hide_env_values = true)]
    experts: Option<u32>,
    /// Layers without a gate, as 0-2,5; needs --experts [default: none]
    #[arg(long, value_name = "LAYERS", env = "GATESCOPE_DENSE_LAYERS", hide_env_values = true)]
    dense_layers: Option<String>,
}

impl ModelArguments {
    /// The geometry of a row and the model, as far as they were described: by the arguments, else by the settings.
    pub(crate) fn describe(&self, settings: &Settings) -> anyhow::Result<(Option<RowShape>, Option<ModelShape>)> {
        let described = self.model_config.is_some() || self.shape.is_some();
        // One source describes the whole model: a shape from here and experts from there would fit by luck only.
        let (config, shape, experts, dense) = if described {
            (self.model_config.as_ref(), self.shape.as_ref(), self.experts, self.dense_layers.as_ref())
        } else {
            let dense = self.dense_layers.as_ref().or(settings.dense_layers.as_ref());
            (settings.model_config.as_ref(), settings.shape.as_ref(), self.experts.or(settings.experts), dense)
        };
        match (config, shape) {
            (Some(_), Some(_)) => bail!("--model-config and --shape: expected one of them"),
            (Some(path), None) => {
                if experts.is_some() || dense.is_some() {
                    bail!("--experts and --dense-layers: {} says these already", path.display());
                }
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                let model = model_shape(&text).with_context(|| path.display().to_string())?;
                Ok((Some(model.row()), Some(model)))
            }
            (None, Some(shape)) => {
                let row = row_shape(shape)?;
                let Some(experts) = experts else {
                    if dense.is_some() {
                        bail!("--dense-layers: expected --experts beside it");
                    }
                    return Ok((Some(row), None));
                };
                let dense = dense.map(|layers| layer_set(layers)).transpose()?.unwrap_or_default();
                if let Some(layer) = dense.iter().find(|&layer| layer >= row.layers()) {
                    bail!("--dense-layers: layer {layer}: the model has layers 0 to {}", row.layers() - 1);
                }
                let gated = (0..row.layers()).filter(|&layer| !dense.contains(layer)).collect();
                let model = ModelShape::new(row, u64::from(experts), gated).context("--shape and --experts")?;
                Ok((Some(row), Some(model)))
            }
            (None, None) if experts.is_some() || dense.is_some() => {
                bail!("--experts and --dense-layers: expected --shape beside them")
            }
            (None, None) => Ok((None, None)),
        }
    }
}

/// `48x8`
fn row_shape(text: &str) -> anyhow::Result<RowShape> {
    let wrong = || format!("--shape {text:?}: expected LAYERSxTOP_K, as 48x8");
    let (layers, top_k) = text.split_once('x').with_context(wrong)?;
    let (layers, top_k) = (layers.trim().parse().with_context(wrong)?, top_k.trim().parse().with_context(wrong)?);
    RowShape::new(layers, top_k).with_context(|| format!("--shape {text:?}"))
}

/// `0-2,5`
fn layer_set(text: &str) -> anyhow::Result<LayerSet> {
    let wrong = || format!("--dense-layers {text:?}: expected layers and ranges of layers below 1024, as 0-2,5");
    let mut layers = LayerSet::empty();
    for piece in text.split(',') {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let first: u16 = first.trim().parse().with_context(wrong)?;
        let last: u16 = last.trim().parse().with_context(wrong)?;
        if first > last || last >= 1024 {
            bail!(wrong());
        }
        (first..=last).for_each(|layer| layers.insert(usize::from(layer)));
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(shape: Option<&str>, experts: Option<u32>, dense_layers: Option<&str>) -> ModelArguments {
        let (shape, dense_layers) = (shape.map(str::to_owned), dense_layers.map(str::to_owned));
        ModelArguments { model_config: None, shape, experts, dense_layers }
    }

    #[test]
    fn a_model_is_described_by_its_shape() {
        let (row, model) = arguments(Some("6x2"), Some(8), Some("0-1,4")).describe(&Settings::default()).unwrap();
        let model = model.unwrap();
        assert_eq!((row.unwrap().layers(), row.unwrap().top_k(), model.num_experts()), (6, 2, 8));
        assert_eq!(model.moe_layers().to_string(), "2-3,5");
    }

    #[test]
    fn a_shape_alone_says_nothing_of_experts() {
        let (row, model) = arguments(Some("6x2"), None, None).describe(&Settings::default()).unwrap();
        assert!(row.is_some() && model.is_none());
    }

    #[test]
    fn what_does_not_describe_a_model_is_refused() {
        for (shape, experts, dense) in [
            (Some("6"), None, None),
            (Some("0x2"), None, None),
            (Some("6x2"), Some(1), None),
            (Some("6x2"), Some(8), Some("6")),
            (Some("6x2"), Some(8), Some("3-1")),
            (Some("6x2"), None, Some("0")),
            (None, Some(8), None),
        ] {
            let refused = arguments(shape, experts, dense).describe(&Settings::default());
            assert!(refused.is_err(), "{shape:?} {experts:?} {dense:?}");
        }
    }
}
